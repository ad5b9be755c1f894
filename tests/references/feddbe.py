"""FedDBE: a bias of each client's own before the head, and one mean of features (NeurIPS 2023)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import backward, cross_entropy, features, linear, scale, subtract


def loss_and_gradient(model, x, y, mean, target, kappa, mu):
    """CE of h(z + b) + kappa |r - target|^2 / 2d with its gradient, and r.

    Args:
      model: a network with a "memory" {"bias": [d]} beside its layers.
      x, y: a minibatch.
      mean: r before the minibatch, a constant.
      target: the consensus.
      kappa, mu: see `run`.
    """
    bias, plain = model["memory"]["bias"], {k: v for k, v in model.items() if k != "memory"}
    z = features(plain, x)
    loss, slope = cross_entropy(linear(plain["head"], z + bias), y)
    mean = mu * z.mean(axis=0) + (1 - mu) * mean
    loss += kappa * ((mean - target) ** 2).mean() / 2
    pull = kappa * (mean - target) / len(mean) * mu / len(x)
    gradient = backward(plain, x, slope, pull)
    gradient["head"]["kernel"] = (z + bias).T @ slope
    gradient["memory"] = {"bias": (slope @ plain["head"]["kernel"].T).sum(axis=0)}
    return loss, gradient, mean


def train(model, batches, x, y, rate, target, kappa, mu, shifted=True):
    """(the model after its minibatches, the last r); without `shifted` the bias stays."""
    mean = np.zeros(len(target))
    for batch in batches:
        _, gradient, mean = loss_and_gradient(model, x[batch], y[batch], mean, target, kappa, mu)
        moved = subtract(model, scale(rate, gradient))
        model = moved if shifted else {**moved, "memory": model["memory"]}
    return model, mean


def run(s, *, first_batches, kappa=50.0, mu=1.0):
    """All clients find the consensus; then rounds of FedAvg with biases that stay.

    Args:
      first_batches: [i], the batches of client i before the first round.
      kappa: weight of the distance to the consensus.
      mu: weight of a minibatch in the running mean of features.

    Returns:
      (the consensus, the models after every round). These are "global", the shared layers, and
      "personalized", [N], with a "memory" each.
    """
    count, width = len(s.clients), len(s.initial["head"]["kernel"])
    none = {"memory": {"bias": np.zeros(width)}}
    means = [
        train(
            {**s.initial, **none},
            own,
            s.x,
            s.y,
            s.learning_rate[0],
            np.zeros(width),
            0.0,
            mu,
            False,
        )[1]
        for own in first_batches
    ]
    consensus = sum(n * mean for n, mean in zip(s.sizes, means, strict=True)) / sum(s.sizes)
    shared, own, history = s.initial, [none for _ in range(count)], []
    for t in range(s.rounds):
        sent = []
        for i in s.cohorts[t]:
            model, _ = train({**shared, **own[i]}, *s.work(t, i), consensus, kappa, mu)
            own[i] = {"memory": model["memory"]}
            sent.append({name: layer for name, layer in model.items() if name != "memory"})
        if sent:
            shared = average(sent, s.sizes, s.cohorts[t])
        models = [{**shared, **memory} for memory in own]
        history.append({"global": shared, "personalized": models})
    return consensus, history
