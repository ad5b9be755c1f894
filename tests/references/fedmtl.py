"""Federated multi-task learning with mean regularization (Smith et al., NIPS 2017, section 3)."""

import numpy as np

from tests.references.local_sgd import sgd
from tests.references.network import flat, unflat


def digits_scale(model):
    """10^-(k + 1) for a model whose number of parameters has k digits."""
    return 10.0 ** -(len(str(len(flat(model)))) + 1)


def column(own, others, batches, x, y, learning_rate, coupling, ridge):
    """SGD on one column of W, by the gradient of the whole regularizer with respect to it."""
    m = 1 + len(others)
    centring = np.eye(m) - np.ones((m, m)) / m
    relation = centring @ centring

    def extra(model):
        columns = np.stack([flat(model), *(flat(other) for other in others)], axis=1)
        slopes = 2 * coupling * columns @ relation + 2 * ridge * columns
        return unflat(slopes[:, 0], own)

    return sgd(own, batches, x, y, learning_rate, extra_gradient=extra)


def run(s, *, coupling=None, ridge=None):
    """Every member trains its own model, beside the others as they were before the round.

    Args:
      coupling, ridge: lambda_1, lambda_2; None is the scale of the model's size.

    Returns:
      After every round, "personalized": [N].
    """
    usual = digits_scale(s.initial)
    coupling, ridge = (usual if value is None else value for value in (coupling, ridge))
    own, history = [s.initial for _ in s.clients], []
    for t in range(s.rounds):
        before = list(own)
        for i in s.cohorts[t]:
            others = [before[j] for j in s.cohorts[t] if j != i]
            own[i] = column(own[i], others, *s.work(t, i), coupling, ridge)
        history.append({"personalized": list(own)})
    return history
