"""FedKD: mutual distillation, and changes sent as truncated factors (Wu et al., 2022)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import (
    backward,
    cross_entropy,
    features,
    logits,
    mapped,
    scale,
    subtract,
)


def softmax(scores):
    weight = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


def step(own, transform, mentee, x, y, rate):
    """(mentor, W, mentee) after a step on one minibatch."""
    losses, slopes, z = [], [], []
    for model in (own, mentee):
        loss, slope = cross_entropy(logits(model, x), y)
        losses.append(loss)
        slopes.append(slope)
        z.append(features(model, x))
    total, apart = sum(losses), z[0] - z[1] @ transform
    mean_square = (apart**2).mean()
    p = [softmax(logits(model, x)) for model in (own, mentee)]
    of_z = 2 * apart / apart.size
    new = []
    for mine, other, of_features in ((0, 1, of_z), (1, 0, -of_z @ transform.T)):
        distance = (p[other] * np.log(p[other] / p[mine])).sum(axis=1).mean()
        # The quotient's derivative: the own cross-entropy is in its denominator.
        slope = slopes[mine] * (1 - (distance + mean_square) / total**2)
        slope = slope + (p[mine] - p[other]) / len(y) / total
        model = (own, mentee)[mine]
        gradient = backward(model, x, slope, of_features / total)
        new.append(subtract(model, scale(rate, gradient)))
    return new[0], transform + rate * z[1].T @ of_z / total, new[1]


def factored(change, energy):
    """(the change with the fewest singular values that hold this energy, numbers to send)."""
    numbers = 0

    def part(leaf):
        nonlocal numbers
        if leaf.ndim < 2:
            numbers += leaf.size
            return leaf
        u, s, v = np.linalg.svd(leaf, full_matrices=False)
        k = 0
        while k < len(s) and (s[:k] ** 2).sum() < energy * (s**2).sum():
            k += 1
        numbers += min(k * (sum(leaf.shape) + 1), leaf.size)
        return (u[:, :k] * s[:k]) @ v[:k]

    return mapped(part, change), numbers


def run(s, *, transform, first_energy=0.95, last_energy=0.98):
    """Mentees averaged by their changes beside the clients' mentors.

    Args:
      transform: the clients' first W.
      first_energy, last_energy: see `fedjax_pfl`.

    Returns:
      After every round, "global": w, "personalized": [N], "transforms": [N]; "up", "down" [N]:
      numbers sent and received, and "copies" [N]: models received.
    """
    model, own, history = s.initial, [s.initial for _ in s.clients], []
    transforms, last, size = [transform for _ in s.clients], None, 0
    for t in range(s.rounds):
        energy = first_energy + (t + 1) / s.rounds * (last_energy - first_energy)
        up, down, copies = ([0] * len(s.clients) for _ in range(3))
        changes = []
        for i in s.cohorts[t]:
            down[i], copies[i] = (size, 0) if last is not None and i in last else (0, 1)
            mentee = model
            for batch in s.batches[t][i]:
                own[i], transforms[i], mentee = step(
                    own[i], transforms[i], mentee, s.x[batch], s.y[batch], s.learning_rate[t]
                )
            change, up[i] = factored(subtract(mentee, model), energy)
            changes.append(change)
        mean = average(changes, s.sizes, list(s.cohorts[t]), "uniform")
        mean, size = factored(mean, energy)
        model, last = mapped(np.add, model, mean), list(s.cohorts[t])
        history.append({
            "global": model, "personalized": list(own), "transforms": list(transforms),
            "up": up, "down": down, "copies": copies,
        })  # fmt: skip
    return history
