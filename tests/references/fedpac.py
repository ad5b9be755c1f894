"""FedPAC: feature alignment and classifier collaboration (Xu et al., ICLR 2023, Algorithm 1)."""

import numpy as np

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import backward, cross_entropy, features, logits, scale, subtract
from tests.references.simplex import smallest_quadratic


def statistics(inner, y, classes):
    """(H [C, d], V, class means [C, d], counts [C]) of features [n, d], equations (9) and (10)."""
    n, width = inner.shape
    head, variance = np.zeros((classes, width)), 0.0
    means, counts = np.zeros((classes, width)), np.zeros(classes, int)
    for k in range(classes):
        z = inner[y == k]
        if len(z) == 0:
            continue
        share = len(z) / n
        means[k], counts[k] = z.mean(axis=0), len(z)
        head[k] = share * means[k]
        variance += share * np.mean((z**2).sum(axis=1)) - share**2 * means[k] @ means[k]
    return head, variance / n, means, counts


def collaboration(heads, variances, cutoff):
    """a [M, M]: row i minimizes a^T (diag V + D D^T) a, with rows vec(H_i - H_j) of D."""
    rows = []
    for own in heads:
        apart = np.array([(own - other).ravel() for other in heads])
        weights = smallest_quadratic(np.diag(variances) + apart @ apart.T)
        weights = np.where(weights > cutoff, weights, 0.0)
        rows.append(weights / weights.sum())
    return np.array(rows)


def aligned(params, x, y, targets, weight):
    """The gradient of cross-entropy + weight * mean over samples and features of (z - t_y)^2."""
    inner = features(params, x)
    _, slope = cross_entropy(logits(params, x), y)
    pull = 2.0 * (inner - targets[y]) / inner.size
    return backward(params, x, slope, weight * pull)


def run(s, *, head_batches, weight=1.0, head_rate=0.1, cutoff=0.001):
    """Heads are trained on the received body, then bodies under them; heads are combined by a_i.

    Args:
      head_batches: like `batches`, for the head's steps, which come first.
      weight: lambda.
      head_rate: the head's learning rate.
      cutoff: combination weights up to this become 0.

    Returns:
      After every round, "personalized": [N], "prototypes": [C, d], "exists": bool [C],
      "weights": [M, M].
    """
    width, count = np.shape(s.initial["head"]["kernel"])
    body = {layer: s.initial[layer] for layer in s.initial if layer != "head"}
    heads = [s.initial["head"] for _ in s.clients]
    prototypes, exists = np.zeros((count, width)), np.zeros(count, bool)
    history = []
    for t in range(s.rounds):
        sent, weights = {}, None
        for i in s.cohorts[t]:
            own = s.clients[i]["samples"]
            model = {**body, "head": heads[i]}
            head, variance, local, _ = statistics(features(model, s.x[own]), s.y[own], count)
            targets = np.where(exists[:, None], prototypes, local)
            model = sgd(model, head_batches[t][i], s.x, s.y, head_rate, layers=["head"])
            for batch in s.batches[t][i]:
                gradient = aligned(model, s.x[batch], s.y[batch], targets, weight if t else 0.0)
                moved = subtract(model, scale(s.learning_rate[t], gradient))
                model = {**moved, "head": model["head"]}
            _, _, means, counts = statistics(features(model, s.x[own]), s.y[own], count)
            sent[i] = (model, head, variance, means, counts)
        if sent:
            models, described, variances, means, counts = zip(*sent.values(), strict=True)
            bodies = [{layer: model[layer] for layer in body} for model in models]
            body = average(bodies, s.sizes, list(sent))
            weights = collaboration(described, variances, cutoff)
            for row, i in zip(weights, sent, strict=True):
                heads[i] = {
                    name: sum(a * m["head"][name] for a, m in zip(row, models, strict=True))
                    for name in s.initial["head"]
                }
            for k in range(count):
                total = sum(own[k] for own in counts)
                exists[k] = total > 0
                if total:
                    shares = [own[k] / total for own in counts]
                    prototypes[k] = sum(n * m[k] for n, m in zip(shares, means, strict=True))
        history.append(
            {
                "personalized": [{**body, "head": head} for head in heads],
                "prototypes": prototypes.copy(),
                "exists": exists.copy(),
                "weights": weights,
            }
        )
    return history
