"""FedCAC: critical parameters averaged with collaborators only (Wu et al., ICCV 2023)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import combine, flat, mapped


def critical(start, trained, tau):
    """Masks of the parameters of largest |(w - start) w|: `tau` of every tensor, none that is 0."""

    def mask(old, new):
        score = np.abs((new - old) * new)
        count = int(tau * score.size)
        if count == 0:
            return np.zeros(score.shape)
        least = np.sort(score.ravel())[-count]
        return ((score >= least) & (score > 0)).astype(float)

    return mapped(mask, start, trained)


def overlap(a, b):
    """1 - |m_a - m_b|_1 / 2n of two clients' masks."""
    a, b = flat(a), flat(b)
    return 1 - np.abs(a - b).sum() / (2 * len(a))


def collaborators(masks, t, beta):
    """{i: the other clients whose masks are similar enough in round t}, of a dict of masks."""
    found = {i: [] for i in masks}
    overlaps = {(i, j): overlap(masks[i], masks[j]) for i in masks for j in masks if i != j}
    if not overlaps or t + 1 > beta:
        return found
    mean, most = np.mean(list(overlaps.values())), max(overlaps.values())
    least = min(mean + (t + 1) / beta * (most - mean), most)
    for (i, j), value in overlaps.items():
        if value >= least:
            found[i].append(j)
    return found


def blend(mask, custom, shared):
    """m u + (1 - m) g."""
    return mapped(lambda m, u, g: np.where(m > 0, u, g), mask, custom, shared)


def run(s, *, tau=0.5, beta=100.0):
    """Members train from m_i u_i + (1 - m_i) g; the server averages all, and collaborators.

    Args:
      tau: share of every tensor that is critical.
      beta: rounds until there are no collaborators.

    Returns:
      After every round, "global": g, "personalized": [N], what clients would train from next,
      "critical": [N], their masks, "collaborators": {member: [others]}.
    """
    count = len(s.clients)
    shared, custom = s.initial, [s.initial for _ in range(count)]
    masks = [mapped(np.zeros_like, s.initial) for _ in range(count)]
    history = []
    for t in range(s.rounds):
        cohort, trained = list(s.cohorts[t]), {}
        for i in cohort:
            start = blend(masks[i], custom[i], shared)
            trained[i] = s.train(start, t, i)
            masks[i] = critical(start, trained[i], tau)
        near = collaborators({i: masks[i] for i in cohort}, t, beta)
        for i in cohort:
            models = [trained[i], *(trained[j] for j in near[i])]
            custom[i] = combine([1 / len(models)] * len(models), models)
        if cohort:
            shared = average([trained[i] for i in cohort], s.sizes, cohort, "size")
        history.append(
            {
                "global": shared,
                "personalized": [blend(masks[i], custom[i], shared) for i in range(count)],
                "critical": list(masks),
                "collaborators": near,
            }
        )
    return history
