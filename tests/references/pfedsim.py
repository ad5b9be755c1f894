"""pFedSim: bodies mixed by the similarity of classifiers (Tan et al., 2023, Algorithm 1)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import combine

ITSELF = 0.9999


def similarity(a, b):
    """Mean over classes of the cosine of two classifiers' columns, at least 0."""
    total, classes = 0.0, a["head"]["kernel"].shape[1]
    for c in range(classes):
        u, v = a["head"]["kernel"][:, c], b["head"]["kernel"][:, c]
        length = np.linalg.norm(u) * np.linalg.norm(v)
        total += u @ v / length if length > 0 else 0.0
    return max(total / classes, 0.0)


def weights(known, i):
    """Weights of all clients in client i's body from row i of S, or None where S has no pair."""
    others = [s for j, s in enumerate(known) if j != i]
    if not any(s > 0 for s in others):
        return None
    values = [ITSELF if j == i else min(s, ITSELF) for j, s in enumerate(known)]
    scores = np.array([-np.log(1 - s) for s in values])
    return scores / scores.sum()


def run(s, *, warm=1):
    """`warm` rounds of FedAvg, then own models whose bodies begin as mixtures.

    Args:
      warm: rounds of the warm-up.

    Returns:
      After every round, "global": the server's model, "personalized": [N], every client's last
      model, "similarity": S [N, N], "weights": {member: [N] or None} after the warm-up.
    """
    count = len(s.clients)
    server, own, known = s.initial, [None] * count, np.zeros((count, count))
    history = []
    for t in range(s.rounds):
        cohort, trained, used = list(s.cohorts[t]), {}, {}
        if t < warm:
            for i in cohort:
                trained[i] = s.train(server, t, i)
            if cohort:
                server = average([trained[i] for i in cohort], s.sizes, cohort, "size")
        else:
            held = [server if model is None else model for model in own]
            for i in cohort:
                start, used[i] = held[i], weights(known[i], i)
                if used[i] is not None:
                    body = combine(used[i], held)
                    start = {**body, "head": held[i]["head"]}
                trained[i] = s.train(start, t, i)
            for i in cohort:
                own[i] = trained[i]
                for j in cohort:
                    known[i, j] = similarity(trained[i], trained[j])
        history.append(
            {
                "global": server,
                "personalized": [server if model is None else model for model in own],
                "similarity": known.copy(),
                "weights": used,
            }
        )
    return history
