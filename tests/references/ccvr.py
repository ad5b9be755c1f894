"""CCVR: FedAvg, then a head trained on virtual features (Luo et al., NeurIPS 2021, Algorithm 1)."""

import numpy as np

from tests.references import fedavg
from tests.references.network import cross_entropy, features, linear


def gaussians(model, clients, x, y, classes):
    """(mean [d], covariance [d, d]) of each class, by the paper's formulas of clients' moments.

    None for classes with fewer than two samples.
    """
    local = []
    for client in clients:
        z, labels = features(model, x[client["samples"]]), y[client["samples"]]
        moments = []
        for c in range(classes):
            own = z[labels == c]
            mean = own.mean(axis=0) if len(own) else np.zeros(z.shape[1])
            spread = np.zeros((z.shape[1], z.shape[1]))
            for row in own:
                spread += np.outer(row - mean, row - mean)
            moments.append((len(own), mean, spread / max(len(own) - 1, 1)))
        local.append(moments)
    found = []
    for c in range(classes):
        counts, means, spreads = zip(*(moments[c] for moments in local), strict=True)
        total = sum(counts)
        if total < 2:
            found.append(None)
            continue
        mean = sum(n / total * m for n, m in zip(counts, means, strict=True))
        spread = -total / (total - 1) * np.outer(mean, mean)
        for n, m, s in zip(counts, means, spreads, strict=True):
            spread = spread + max(n - 1, 0) / (total - 1) * s + n / (total - 1) * np.outer(m, m)
        found.append((mean, spread))
    return found


def root(spread):
    """The symmetric square root of a covariance."""
    variances, axes = np.linalg.eigh(spread)
    variances[variances < 1e-13 * variances.max()] = 0
    return axes @ np.diag(np.sqrt(variances)) @ axes.T


def calibrated(model, known, drawn, orders, rate, size):
    """The head after SGD on virtual features.

    Args:
      model: the server's.
      known: a Gaussian or None for each class.
      drawn: standard normal numbers [C, n, d].
      orders: for each epoch, the order of the virtual samples, those of the first class first.
      rate, size: of SGD, and of its minibatches.
    """
    rows, labels = [], []
    for c, one in enumerate(known):
        if one is not None:
            mean, spread = one
            rows += [mean + root(spread) @ numbers for numbers in drawn[c]]
            labels += [c] * len(drawn[c])
    rows, labels = np.array(rows), np.array(labels)
    head = model["head"]
    for order in orders:
        assert sorted(order) == list(range(len(rows)))
        for first in range(0, len(rows), size):
            at = order[first : first + size]
            _, slope = cross_entropy(linear(head, rows[at]), labels[at])
            head = {
                "kernel": head["kernel"] - rate * rows[at].T @ slope,
                "bias": head["bias"] - rate * slope.sum(axis=0),
            }
    return {**model, "head": head}


def run(s, *, drawn, orders, size, every):
    """FedAvg; the head is calibrated after the last round, or after `every` one.

    Args:
      drawn, orders: of each round, see `calibrated`.
      size: of the server's minibatches.
      every: whether it is calibrated after every round.

    Returns:
      After every round, "global" and "personalized": the model before and after calibration.
    """
    history, classes = [], len(s.initial["head"]["bias"])
    for t, models in enumerate(fedavg.run(s)):
        own = model = models["global"]
        if every or t == s.rounds - 1:
            known = gaussians(model, s.clients, s.x, s.y, classes)
            own = calibrated(model, known, drawn[t], orders[t], s.learning_rate[t], size)
        history.append({"global": model, "personalized": own})
    return history
