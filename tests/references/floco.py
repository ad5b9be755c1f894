"""Floco: a simplex of heads, and points of clients in it (Grinwald et al., NeurIPS 2024)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import loss_and_gradient, scale, subtract


def at(model, point):
    """The plain network at a point [E] of the simplex; "head" has the kernels [E, d, C]."""
    kernel = sum(a * h for a, h in zip(point, model["head"]["kernel"], strict=True))
    return {**model, "head": {**model["head"], "kernel": kernel}}


def train(model, batches, x, y, rate, points):
    """SGD on body, bias and all kernels; step k is at points[k]."""
    for batch, point in zip(batches, points, strict=True):
        _, gradient = loss_and_gradient(at(model, point), x[batch], y[batch])
        kernels = np.stack([a * gradient["head"]["kernel"] for a in point])
        gradient = {**gradient, "head": {**gradient["head"], "kernel": kernels}}
        model = subtract(model, scale(rate, gradient))
    return model


def on_simplex(row, level):
    """The point with sum 1 in the direction of a row's projection on the simplex of sum `level`."""
    ordered, shift = sorted(row, reverse=True), 0.0
    for n in range(1, len(row) + 1):
        excess = (sum(ordered[:n]) - level) / n
        if ordered[n - 1] > excess:
            shift = excess
    point = np.maximum(np.asarray(row) - shift, 0)
    return point / point.sum()


def components(rows, count):
    """The first principal components [N, count]; axes have a positive largest entry."""
    rows = np.asarray(rows)
    centred = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    chosen = []
    for k in np.argsort(-variances)[:count]:
        axis = axes[:, k] * np.sign(axes[np.argmax(np.abs(axes[:, k])), k])
        chosen.append(centred @ axis)
    return np.array(chosen).T


def energy(points):
    """The Riesz energy: sum over pairs of 1 / |b_i - b_j|^2."""
    total = 0.0
    for i in range(len(points)):
        for j in range(i):
            distance = np.sqrt(np.sum((points[i] - points[j]) ** 2))
            total += 1 / max(distance, 1e-4) ** 2
    return total


def clients_points(rows, count):
    """b [N, count] of clients' flat kernels [N, P]."""
    reduced, best, least = components(rows, count), np.empty((0, count)), np.inf
    for level in np.linspace(1e-4, 1, 1000):
        points = np.array([on_simplex(row, level) for row in reduced])
        if energy(points) < least:
            best, least = points, energy(points)
    return best


def uniform(drawn):
    """A uniform point of the simplex from exponential numbers [E]."""
    return drawn / drawn.sum()


def near(centre, direction, share, rho):
    """The point at distance share * rho in the 1-norm along a direction [E]."""
    return centre + share * rho * direction / np.abs(direction).sum()


def run(s, *, first_batches, draws, first_draws, warmup_fraction=0.5, rho=0.1):
    """FedAvg at random points; points of clients from round floor(warmup_fraction R) on.

    Args:
      s: its initial model has the kernels [E, d, C] of the corners.
      first_batches: [i], of all clients before the round in which they get points.
      draws: draws[t][i][k]: of step k, (exponential numbers [E], direction [E], share).
      first_draws: [i][k], likewise for `first_batches`.
      warmup_fraction, rho: see the algorithm.

    Returns:
      After every round, "global": the simplex, "points": [N, E].
    """
    count = len(s.initial["head"]["kernel"])
    points = [np.full(count, 1 / count) for _ in s.clients]
    model, begin, history = s.initial, int(np.floor(warmup_fraction * s.rounds)), []
    for t in range(s.rounds):
        rate = s.learning_rate[t]
        if t == begin:
            rows = []
            for own, drawn in zip(first_batches, first_draws, strict=True):
                drawn = [uniform(numbers) for numbers, *_ in drawn]
                rows.append(train(model, own, s.x, s.y, rate, drawn)["head"]["kernel"].ravel())
            points = list(clients_points(rows, count))
        sent = []
        for i in s.cohorts[t]:
            if t < begin:
                drawn = [uniform(numbers) for numbers, *_ in draws[t][i]]
            else:
                drawn = [near(points[i], way, share, rho) for _, way, share in draws[t][i]]
            sent.append(train(model, s.batches[t][i], s.x, s.y, rate, drawn))
        if sent:
            model = average(sent, s.sizes, s.cohorts[t])
        history.append({"global": model, "points": np.array(points)})
    return history
