"""FedPHP: inherited private models (Li et al., ECML PKDD 2021, and its published code)."""

import numpy as np

from tests.references import network
from tests.references.averaging import average
from tests.references.network import backward, combine, cross_entropy, logits, scale, subtract


def discrepancy(z, other):
    """(mean of k(z, z) + k(o, o) - 2 k(z, o) over all pairs, its slope with respect to z)."""
    rows, n = np.concatenate([z, other]), len(z)
    apart = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    width = apart.sum() / (2 * n * (2 * n - 1)) + 1e-8
    widths = [width / 4 * 2**k for k in range(5)]
    kernel = np.sum([np.exp(-apart / w) for w in widths], axis=0)
    value = (kernel[:n, :n] + kernel[n:, n:] - kernel[:n, n:] - kernel[n:, :n]).mean()
    slope = np.zeros_like(z)
    for i in range(n):
        for j in range(2 * n):
            inner = sum(np.exp(-apart[i, j] / w) * -2 / w for w in widths) * (rows[i] - rows[j])
            slope[i] += (2.0 if j < n else -2.0) * inner
    return value, slope / n**2


def distillation_slope(teacher, student):
    """The slope of the mean cross-entropy with softmax(teacher / 4)."""
    wanted = np.exp(teacher / 4 - (teacher / 4).max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    given = np.exp(student - student.max(axis=1, keepdims=True))
    given /= given.sum(axis=1, keepdims=True)
    return (given - wanted) / len(student)


def gradient(params, private, x, y, weight, regularizer):
    """Of (1 - weight) CE + weight R."""
    scores = logits(params, x)
    _, slope = cross_entropy(scores, y)
    slope, feature_slope = (1 - weight) * slope, 0.0
    if regularizer == "mmd":
        _, apart = discrepancy(network.features(params, x), network.features(private, x))
        feature_slope = weight * apart
    else:
        slope = slope + weight * distillation_slope(logits(private, x), scores)
    return backward(params, x, slope, feature_slope)


def run(s, *, ratio=1.0, weight=0.1, regularizer="mmd", inheritance=0.9):
    """FedAvg with a private model of every client, a moving average of what it trains.

    Args:
      ratio: fraction of the clients in a round.
      weight: lambda.
      regularizer: "mmd" or "distillation".
      inheritance: the most of m.

    Returns:
      After every round, "global": w, "personalized": [N], the v_i.
    """
    model, private = s.initial, [s.initial for _ in s.clients]
    taken, history = [0 for _ in s.clients], []
    for t in range(s.rounds):
        trained = []
        for i in s.cohorts[t]:
            own = model
            for batch in s.batches[t][i]:
                step = gradient(own, private[i], s.x[batch], s.y[batch], weight, regularizer)
                own = subtract(own, scale(s.learning_rate[t], step))
            trained.append(own)
            m = min(inheritance, inheritance * taken[i] / max(int(ratio * s.rounds), 1))
            private[i] = combine([m, 1 - m], [private[i], own])
            taken[i] += 1
        if trained:
            model = average(trained, s.sizes, list(s.cohorts[t]))
        history.append({"global": model, "personalized": list(private)})
    return history
