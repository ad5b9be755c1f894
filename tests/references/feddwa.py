"""FedDWA: dynamic weight adjustment (Liu et al., IJCAI 2023, Algorithm 1)."""

from itertools import combinations

import numpy as np

from tests.references.local_sgd import sgd
from tests.references.network import (
    combine,
    dot,
    loss_and_gradient,
    scale,
    squared_distance,
    squared_norm,
    subtract,
)

GUIDANCE = ("epochs", "full_gradient", "last", "received", "trained", "extrapolate")


def inverse_distance_weights(distances, k=None, tiny=1e-300):
    """Eq. (15) for one client, then top-K: one row of p.

    Args:
      distances: squared distances from the client's guidance model to each trained model.
      k: how many of the largest weights to keep, ties to the lower position; None or any
        k >= M keeps all.
      tiny: distances are taken to be at least this.
    """
    inverse = [1.0 / max(distance, tiny) for distance in distances]
    ranking = sorted(range(len(inverse)), key=lambda j: (-inverse[j], j))
    kept = ranking if k is None else ranking[:k]
    total = sum(inverse[j] for j in kept)
    weights = np.zeros(len(inverse))
    for j in kept:
        weights[j] = inverse[j] / total
    return weights


def exact_weights(guide, trained, nonnegative=False):
    """Eq. (13), p = W^-1 1 / (1^T W^-1 1) with W of eq. (11): an oracle for a few clients.

    Eq. (13) leaves out the constraint p >= 0 of eq. (12). With `nonnegative`, eq. (12) is solved
    as it stands: eq. (13) on every subset of the clients, and the best of those that satisfy it.
    """
    count = len(trained)
    differences = [subtract(guide, model) for model in trained]
    gram = np.array([[dot(a, b) for b in differences] for a in differences])
    supports = (
        [s for size in range(1, count + 1) for s in combinations(range(count), size)]
        if nonnegative
        else [tuple(range(count))]
    )
    best, least = None, np.inf
    for support in supports:
        solved = np.linalg.solve(gram[np.ix_(support, support)], np.ones(len(support)))
        weights = np.zeros(count)
        weights[list(support)] = solved / solved.sum()
        objective = weights @ gram @ weights
        if nonnegative and (weights.min() < 0.0 or objective >= least):
            continue
        best, least = weights, objective
    return best


def guidance_model(variant, *, received, trained, last, samples, batches, x, y, learning_rate):
    """w*_i of one client: eq. (16) and what section 4.1 and appendix C.6 tried in its place.

    Args:
      variant: "epochs", further SGD from the trained model (Algorithm 1, client, lines 7-8);
        "full_gradient", one step along the gradient over all the client's samples (eq. 16 to the
        letter); "last", what the client trained when it last took part; "received", w_i;
        "trained", w^_i itself, which leaves local training; "extrapolate", 2 w^_i - w_i.
      received, trained: w_i and w^_i of this round.
      last: w^_i of the client's previous participation, or the initial model.
      samples: indices of all the client's training samples.
      batches: the batches of the further epochs, one epoch after the other.
      x, y, learning_rate: as for the local training.
    """
    if variant == "epochs":
        return sgd(trained, batches, x, y, learning_rate)
    if variant == "full_gradient":
        _, gradient = loss_and_gradient(trained, x[samples], y[samples])
        return subtract(trained, scale(learning_rate, gradient))
    if variant == "last":
        return last
    if variant == "received":
        return received
    if variant == "trained":
        return trained
    if variant == "extrapolate":
        return subtract(scale(2.0, trained), received)
    raise ValueError(f"Unknown guidance {variant!r}. Valid: {', '.join(GUIDANCE)}.")


def run(s, *, top_k=5, weights="inverse", guidance="epochs", guidance_batches=None):
    """Every client's model is a mixture of the trained models nearest to its guidance model.

    Args:
      top_k: how many models a client mixes.
      weights: "inverse", eq. (15); "exact", eq. (13); "simplex", eq. (12).
      guidance: the guidance model, one of `GUIDANCE`.
      guidance_batches: like `batches`, for the guidance "epochs"; several epochs are one longer
        list, so they continue one another.

    Returns:
      After every round, "personalized": [N models], "trained" and "guidance": {client: model}
      of the cohort, "weights": [N, N] with the rows of absent clients those of the identity.
    """
    personal = [s.initial for _ in s.clients]
    last = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        trained, guide = {}, {}
        for i in cohort:
            trained[i] = s.train(personal[i], t, i)  # eq. (7)
            guide[i] = guidance_model(  # eq. (16)
                guidance,
                received=personal[i],
                trained=trained[i],
                last=last[i],
                samples=s.clients[i].get("samples"),
                batches=guidance_batches[t][i] if guidance == "epochs" else None,
                x=s.x,
                y=s.y,
                learning_rate=s.learning_rate[t],
            )

        matrix = np.eye(len(s.clients))
        for i in cohort:
            distances = [squared_distance(guide[i], trained[j]) for j in cohort]
            tiny = 1e-12 * squared_norm(trained[i])
            matrix[i] = 0.0
            if weights == "inverse":
                matrix[i, cohort] = inverse_distance_weights(distances, top_k, tiny)  # eq. (15)
            else:
                models = [trained[j] for j in cohort]
                matrix[i, cohort] = exact_weights(guide[i], models, weights == "simplex")

        for i in cohort:
            models = [trained[j] for j in cohort]
            personal[i] = combine([matrix[i, j] for j in cohort], models)  # eq. (8)
            last[i] = trained[i]
        history.append(
            {
                "personalized": list(personal),
                "trained": trained,
                "guidance": guide,
                "weights": matrix,
            }
        )
    return history
