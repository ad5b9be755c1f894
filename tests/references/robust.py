"""Robust aggregation rules on vectors, in NumPy: plain loops over clients and coordinates."""

import numpy as np


def distances(x):
    return np.array([[np.sum((a - b) ** 2) for b in x] for a in x])


def krum_scores(x, f, neighbours=2):
    n = len(x)
    scores = []
    for i in range(n):
        others = sorted(np.sum((x[i] - x[j]) ** 2) for j in range(n) if j != i)
        scores.append(sum(others[: max(n - f - neighbours, 0)]))
    return np.array(scores)


def krum(x, f, selected=1, neighbours=2):
    best = np.argsort(krum_scores(x, f, neighbours), kind="stable")[:selected]
    return np.mean([x[k] for k in best], axis=0)


def geometric_median(x, a, steps, smoothing, start):
    z = start
    for _ in range(steps):
        w = np.array([a[k] / max(smoothing, np.linalg.norm(z - x[k])) for k in range(len(x))])
        z = sum(w[k] * x[k] for k in range(len(x))) / w.sum()
    return z


def clip(v, radius):
    norm = np.linalg.norm(v)
    return v if norm <= radius else v * radius / norm


def centred_clipping(x, a, radius, steps):
    v = np.zeros(x.shape[1])
    for _ in range(steps):
        v = v + sum(a[k] * clip(x[k] - v, radius) for k in range(len(x)))
    return v


def nearest_neighbour_mixing(x, f):
    rows = []
    for i in range(len(x)):
        order = sorted(range(len(x)), key=lambda j: (j != i, np.sum((x[i] - x[j]) ** 2)))
        rows.append(np.mean([x[j] for j in order[: len(x) - f]], axis=0))
    return np.array(rows)


def self_clip(w, x, radius):
    rows = []
    for i in range(len(x)):
        rows.append(x[i] + sum(w[i, j] * clip(x[j] - x[i], radius[i]) for j in range(len(x))))
    return np.array(rows)


def clip_radius(w, x, share):
    """The smallest distance to a sender beyond which the senders' weights are within the share."""
    radius = []
    for i in range(len(x)):
        away = [np.linalg.norm(v - x[i]) for v in x]
        fits = [d for d in away if sum(w[i, j] for j in range(len(x)) if away[j] > d) <= share]
        radius.append(min(fits))
    return np.array(radius)


def median(x):
    return np.median(x, axis=0)


def trimmed_mean(x, f):
    return np.array([np.mean(sorted(column)[f : len(column) - f]) for column in x.T])


def bulyan(x, f, neighbours=2):
    left, chosen = list(range(len(x))), []
    for _ in range(len(x) - 2 * f):
        scores = krum_scores(x[left], f, neighbours)
        chosen.append(left.pop(int(np.argmin(scores))))
    selected = x[chosen]
    middle = np.median(selected, axis=0)
    out = []
    for column, m in zip(selected.T, middle, strict=True):
        nearest = sorted(column, key=lambda value: abs(value - m))[: len(x) - 4 * f]
        out.append(np.mean(nearest))
    return np.array(out)


def foolsgold(history):
    n = len(history)
    norms = np.linalg.norm(history, axis=1)
    cos = np.array([[history[i] @ history[j] / (norms[i] * norms[j]) for j in range(n)]
                    for i in range(n)])  # fmt: skip
    np.fill_diagonal(cos, 0)
    most = cos.max(axis=1)
    for i in range(n):
        for j in range(n):
            if i != j and most[i] < most[j]:
                cos[i, j] *= most[i] / most[j]
    alpha = np.clip(1 - cos.max(axis=1), 0, 1)
    alpha = alpha / alpha.max()
    alpha[alpha == 1] = 0.99
    with np.errstate(divide="ignore"):
        logit = np.log(alpha / (1 - alpha)) + 0.5
    weights = np.clip(logit, 0, 1)
    return weights / weights.sum()


def fltrust(x, root):
    trust = [max(v @ root / (np.linalg.norm(v) * np.linalg.norm(root)), 0) for v in x]
    scaled = [v * np.linalg.norm(root) / np.linalg.norm(v) for v in x]
    return sum(t * v for t, v in zip(trust, scaled, strict=True)) / sum(trust)
