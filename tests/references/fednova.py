"""FedNova: normalized averaging (Wang et al., NeurIPS 2020, equations (5) and (9))."""

import numpy as np

from tests.references.network import add, combine, loss_and_gradient, scale, subtract, zeros_like


def local_path(received, batches, x, y, rate, momentum, nesterov, mu):
    """(the model after local SGD, a_i: the coefficient of each gradient in its displacement).

    The displacement is -eta sum_k a_ik g_k. Every update of the model is repeated on the vector of
    these coefficients.
    """
    model, velocity = received, zeros_like(received)
    count = len(batches)
    moved, running = np.zeros(count), np.zeros(count)
    for k, batch in enumerate(batches):
        _, gradient = loss_and_gradient(model, x[batch], y[batch])
        gradient = add(gradient, scale(mu, subtract(model, received)))
        velocity = add(scale(momentum, velocity), gradient)
        step = add(gradient, scale(momentum, velocity)) if nesterov else velocity
        model = subtract(model, scale(rate, step))

        unit = np.eye(count)[k] - rate * mu * moved
        running = momentum * running + unit
        moved = moved + (unit + momentum * running if nesterov else running)
    return model, moved


def length_with_momentum(steps, momentum):
    """|a_i|_1 of `steps` steps with heavy-ball momentum (section 3 of the paper)."""
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def proximal_length(steps, pull):
    """|a_i|_1 of `steps` plain steps with a proximal term; `proximal_weight` is eta mu."""
    return (1 - (1 - pull) ** steps) / pull


def run(s, *, proximal_weight=0.0, momentum=0.0, nesterov=False):
    """w <- w + tau sum_i p_i (w_i - w) / |a_i|_1, tau = sum_i p_i |a_i|_1 of the case mu = 0.

    Args:
      proximal_weight: mu, of the proximal term.
      momentum, nesterov: of local SGD, whose velocity begins at 0 in each round.

    Returns:
      After every round, {"global": model, "weights": those of the members' models, normalized}.
    """
    model, history = s.initial, []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        total = sum(s.sizes[i] for i in cohort)
        weights, updates, tau = [], [], 0.0
        for i in cohort:
            rate, share = s.learning_rate[t], s.sizes[i] / total
            given = (model, s.batches[t][i], s.x, s.y, rate, momentum, nesterov)
            own, path = local_path(*given, proximal_weight)
            _, free = local_path(*given, 0.0)
            updates.append(subtract(own, model))
            weights.append(share / path.sum() if len(path) else 0.0)
            tau += share * free.sum()
        if cohort:
            model = add(model, scale(tau, combine(weights, updates)))
        shares = np.zeros(len(s.sizes))
        shares[cohort] = np.array(weights) / sum(weights) if sum(weights) else 0.0
        history.append({"global": model, "weights": shares})
    return history
