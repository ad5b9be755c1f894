"""FedALA: adaptive local aggregation (Zhang et al., AAAI 2023, Algorithm 1)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import flat, loss_and_gradient, mapped, subtract


def window(samples, percent, start):
    """The contiguous part of a client's samples that its weights are learnt on.

    Args:
      percent: its size, rounded down, but at least one sample.
      start: its first position; the positions 0..n - size are possible.
    """
    size = max(1, int(percent / 100 * len(samples)))
    if not 0 <= start <= len(samples) - size:
        raise ValueError(f"The window can't start at {start}.")
    return samples[start : start + size]


def between(own, received, weights):
    """theta + (w - theta) * W, leaf by leaf."""
    return mapped(lambda theta, w, share: theta + (w - theta) * share, own, received, weights)


def weight_step(weights, slope, own, received, rate):
    """W <- clip(W - eta grad * (w - theta), 0, 1): the chain rule through `between`."""
    return mapped(
        lambda share, g, theta, w: np.clip(share - rate * g * (w - theta), 0.0, 1.0),
        weights,
        slope,
        own,
        received,
    )


def converged(losses, threshold, window_size):
    """More than `window_size` losses, whose last ones have a standard deviation below."""
    return len(losses) > window_size and np.std(losses[-window_size:]) < threshold


def adapt(own, received, weights, batches, x, y, *, rate, first, threshold, window_size, most):
    """One client's adaptive local aggregation.

    Args:
      own: theta_i, the client's model.
      received: w.
      weights: W_i of the upper layers.
      batches: of one pass over its window, in order.
      rate: eta.
      first: whether passes are repeated until their last losses have settled.
      threshold, window_size, most: when that is, and the largest number of passes.

    Returns:
      (theta_hat, W_i, the passes taken).
    """
    top = list(weights)
    mine, theirs = ({name: model[name] for name in top} for model in (own, received))
    losses = []
    while batches and len(losses) < (most if first else 1):
        for batch in batches:
            model = {**received, **between(mine, theirs, weights)}
            loss, gradient = loss_and_gradient(model, x[batch], y[batch])
            slope = {name: gradient[name] for name in top}
            weights = weight_step(weights, slope, mine, theirs, rate)
        losses.append(loss)  # of the pass's last batch
        if converged(losses, threshold, window_size):
            break
    return {**received, **between(mine, theirs, weights)}, weights, len(losses)


def equal(model, other):
    """Whether two models are the same to the bit."""
    return not np.any(flat(subtract(model, other)))


def run(
    s,
    *,
    adaptation_batches,
    top=("head",),
    weight_rate=1.0,
    threshold=0.1,
    window_size=10,
    max_passes=30,
    participants="all",
    first_weight=1.0,
):
    """FedAvg whose clients mix the received model into their own, element by element.

    Args:
      adaptation_batches: adaptation_batches[t][i], one pass over the window that client i draws
        in round t, unshuffled; none leaves its weights as they are.
      top: names of the layers with weights; below, clients take the server's.
      weight_rate: eta.
      threshold, window_size: the weights of a client's first adaptation are learnt until the
        last `window_size` losses have a standard deviation below the threshold.
      max_passes: the published code has no such bound.
      participants: "all" (the published code): at the end of a round, which is the beginning of the
        next, all clients download the new model and adapt; absent ones keep what came out.
        "sampled": the cohort at the beginning of its round.
      first_weight: of all elements before a client's first adaptation.

    Returns:
      After every round, "global"; "personalized": [N], theta_hat, that a client will train
      ("all") or last trained ("sampled") from; "trained": [N], what it last trained;
      "received": {client: what it trained from in this round}; "weights": [N], W_i; "passes":
      [N], those of this round's adaptation. A client whose model equals the received one does not
      adapt: nobody does in the first round.
    """
    count = len(s.clients)
    ones = mapped(lambda leaf: np.full_like(leaf, first_weight), {k: s.initial[k] for k in top})
    model, weights, begun = s.initial, [ones] * count, [False] * count
    held, adapted, trained = [s.initial] * count, [s.initial] * count, [s.initial] * count
    passes = [0] * count

    def adapt_client(i, t):
        if not equal(held[i], model):
            held[i], weights[i], passes[i] = adapt(
                held[i],
                model,
                weights[i],
                adaptation_batches[t][i],
                s.x,
                s.y,
                rate=weight_rate,
                first=not begun[i],
                threshold=threshold,
                window_size=window_size,
                most=max_passes,
            )
            begun[i] = True
        adapted[i] = held[i]

    history = []
    for t in range(s.rounds):
        cohort, passes = list(s.cohorts[t]), [0] * count
        if participants == "sampled":
            for i in cohort:
                adapt_client(i, t)
        received = {i: held[i] for i in cohort}
        for i in cohort:
            held[i] = trained[i] = s.train(held[i], t, i)
        if cohort:
            model = average([trained[i] for i in cohort], s.sizes, cohort)
        if participants == "all":
            for i in range(count):
                adapt_client(i, t)
        history.append(
            {
                "global": model,
                "personalized": list(adapted),
                "trained": list(trained),
                "received": received,
                "weights": list(weights),
                "passes": passes,
            }
        )
    return history
