"""Weight Erosion (Grimberg et al., 2020): an agent's weight shrinks with its distance to Alice."""

import numpy as np

from tests.references.network import (
    combine,
    scale,
    squared_distance,
    squared_norm,
    subtract,
    zeros_like,
)
from tests.references.scaffold import corrected_sgd


def relative_distances(gradients, alice):
    """d_i = ||G_i* - G_i|| / ||G_i*||; all zero where Alice has no gradient to compare with."""
    length = np.sqrt(squared_norm(gradients[alice]))
    if length == 0.0:
        return np.zeros(len(gradients))
    apart = [squared_distance(gradients[alice], gradient) for gradient in gradients]
    return np.sqrt(apart) / length


def eroded(alpha, distances, number, sizes, *, distance_penalty, size_penalty=0.0, batch_size=None):
    """alpha_i <- max(0, alpha_i - (1 + p_s floor((r-1) B / n_i)) p_d d_i), for round r.

    Args:
      alpha: [N].
      distances: d_i.
      number: r, from 1 on.
      sizes: n_i; a client without samples counts as having one.
      distance_penalty, size_penalty: p_d and p_s.
      batch_size: B; read only where p_s isn't zero.
    """
    factors = np.ones(len(alpha))
    if size_penalty:
        passes = [(number - 1) * batch_size // max(int(n), 1) for n in sizes]
        factors += size_penalty * np.array(passes, np.float64)
    return np.maximum(0.0, alpha - factors * distance_penalty * distances)


def run(s, *, distance_penalty, alice=0, size_penalty=0.0, batch_size=None):
    """One model for one Alice, moved along the weighted mean of the agents' summed gradients.

    Args:
      distance_penalty, size_penalty, batch_size: as for `eroded`.
      alice: the client the model is for.

    Returns:
      After every round, "alice": x; "alpha": [N]; "weights": [N], alpha over its sum over the
      cohort, 0 without Alice; "distances": d [N], NaN for the absent.
    """
    count = len(s.clients)
    model = s.initial
    alpha = np.ones(count)
    history = []
    for t in range(s.rounds):
        cohort = sorted(s.cohorts[t])
        distances, weights = np.full(count, np.nan), np.zeros(count)
        if alice in cohort:
            gradients = [corrected_sgd(model, *s.work(t, i), zeros_like(model))[1] for i in cohort]
            distances[cohort] = relative_distances(gradients, cohort.index(alice))
            alpha = alpha.copy()
            alpha[cohort] = eroded(
                alpha[cohort],
                distances[cohort],
                t + 1,
                np.asarray(s.sizes)[cohort],
                distance_penalty=distance_penalty,
                size_penalty=size_penalty,
                batch_size=batch_size,
            )
            weights[cohort] = alpha[cohort] / alpha[cohort].sum()
            moved = scale(s.learning_rate[t], combine(weights[cohort], gradients))
            model = subtract(model, moved)
        history.append({"alice": model, "alpha": alpha, "weights": weights, "distances": distances})
    return history
