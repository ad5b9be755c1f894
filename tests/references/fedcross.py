"""FedCross: middleware models that are crossed with each other (Hu et al., ICDE 2024, Alg. 1)."""

import numpy as np

from tests.references.local_sgd import sgd
from tests.references.network import combine, flat


def cosine(a, b):
    """The cosine of two models' weights."""
    a, b = flat(a), flat(b)
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def collaborator(i, models, t, partner):
    """The index of the collaborative model of model i (CoModelSel)."""
    count = len(models)
    if count == 1:
        return i
    if partner == "in_order":
        return (i + t % (count - 1) + 1) % count
    others = [j for j in range(count) if j != i]
    best = max if partner == "highest" else min
    return best(others, key=lambda j: cosine(models[i], models[j]))


def run(s, *, dealt, alpha=0.99, partner="lowest", warmup_rounds=0):
    """Rounds in which each middleware model is trained by one member.

    Args:
      dealt: per round, the member that trains each middleware model; None trains nobody's.
      alpha, partner, warmup_rounds: hyperparameters.

    Returns:
      After every round, "models": the middleware models, "global": their mean, "partners": the
      member whose model each member's was crossed with, by member.
    """
    models, history = [s.initial for _ in dealt[0]], []
    for t in range(s.rounds):
        at = [k for k, i in enumerate(dealt[t]) if i in s.cohorts[t]]
        back = [sgd(models[k], s.batches[t][dealt[t][k]], s.x, s.y, s.learning_rate[t]) for k in at]
        partners = {}
        for place, k in enumerate(at):
            other = collaborator(place, back, t, partner)
            partners[dealt[t][k]] = dealt[t][at[other]]
            if t < warmup_rounds:
                models[k] = combine([1 / len(back)] * len(back), back)
            else:
                models[k] = combine([alpha, 1 - alpha], [back[place], back[other]])
        share = [1 / len(models)] * len(models)
        history.append(
            {"models": list(models), "global": combine(share, models), "partners": partners}
        )
    return history
