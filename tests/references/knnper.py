"""kNN-Per: FedAvg and votes of the nearest training samples (Marfoq et al., ICML 2022)."""

import numpy as np

from tests.references import fedavg
from tests.references.network import features, logits


def softmax(scores):
    """Probabilities of logits [C]."""
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def votes(keys, labels, z, classes, neighbours, scale):
    """q [C] of features z [d] among keys [n, d] with labels [n]."""
    apart = [float(np.sum((key - z) ** 2)) for key in keys]
    nearest = sorted(range(len(keys)), key=lambda j: apart[j])[:neighbours]
    shares = np.zeros(classes)
    for j in nearest:
        shares[labels[j]] += np.exp(-apart[j] / (len(z) * scale))
    return shares / shares.sum()


def probabilities(model, own, asked, x, y, neighbours, scale, weight):
    """weight * q + (1 - weight) * p of the samples `asked`, [n, C]; `own` are the remembered."""
    inner = features(model, x)
    rows = []
    for k in asked:
        p = softmax(logits(model, x[[k]])[0])
        q = votes(inner[own], y[own], inner[k], len(p), neighbours, scale)
        rows.append(weight * q + (1 - weight) * p)
    return np.array(rows)


def best_weight(model, own, asked, x, y, neighbours, scale):
    """The smallest of 0, 0.1, ..., 1 with the most correct predictions of `asked`."""
    best, most = 0.0, -1
    for weight in np.arange(11) / 10:
        mixed = probabilities(model, own, asked, x, y, neighbours, scale, weight)
        right = int(np.sum(np.argmax(mixed, axis=1) == y[asked]))
        if right > most:
            best, most = weight, right
    return best


def run(s, *, neighbours=7, weight=0.5, scale=1.0, tuned=False):
    """FedAvg; after every round clients predict their test samples.

    Args:
      s: its clients have indices "validation" and "test" beside "samples".
      neighbours, scale: k, sigma.
      weight: lambda; with `tuned`, of clients without validation samples.
      tuned: choose lambda on validation samples.

    Returns:
      After every round, "global": model, "weights": [N], "mixed": probabilities of test samples
      of every client, [n, C] each.
    """
    history = []
    for models in fedavg.run(s):
        model, weights, mixed = models["global"], [], []
        for client in s.clients:
            own, held = client["samples"], client["validation"]
            chosen = weight
            if tuned and len(held):
                chosen = best_weight(model, own, held, s.x, s.y, neighbours, scale)
            weights.append(chosen)
            if len(client["test"]):
                asked = client["test"]
                rows = probabilities(model, own, asked, s.x, s.y, neighbours, scale, chosen)
            else:
                rows = np.zeros((0, 0))
            mixed.append(rows)
        history.append({"global": model, "weights": weights, "mixed": mixed})
    return history
