"""FedDyn: dynamic regularization (Acar et al., ICLR 2021, Algorithm 1)."""

import numpy as np

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import combine, scale, subtract, zeros_like

SCALINGS = ("equal", "size")


def strengths(alpha, sizes, scaling):
    """alpha of every client: the same, or alpha nbar / n_i as in the published code."""
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0, got {alpha}.")
    sizes = np.asarray(sizes, float)
    return np.full(len(sizes), alpha) if scaling == "equal" else alpha * sizes.mean() / sizes


def train_client(received, gradient, alpha, batches, x, y, learning_rate):
    """One client: (y_i after its steps from theta on, its new g_i)."""

    def regulariser(params):
        return subtract(scale(alpha, subtract(params, received)), gradient)

    trained = sgd(received, batches, x, y, learning_rate, extra_gradient=regulariser)
    return trained, subtract(gradient, scale(alpha, subtract(trained, received)))


def run(s, *, alpha=0.01, scaling="equal"):
    """Clients descend f_i(y) - <g_i, y> + alpha/2 ||y - theta||^2; g_i and h remember the drift.

    Args:
      alpha: above 0.
      scaling: each client's alpha, one of `SCALINGS`.

    Returns:
      After every round, "global": theta; "average": the mean of the last cohort's y_i; "everyone":
      the mean of all clients' last y_i (at first the initial model), which the published code
      scores both; "h"; "gradients": [N], the g_i; "trained": [N], the last y_i.
    """
    alphas = strengths(alpha, s.sizes, scaling)
    model = mean = s.initial
    h, count = zeros_like(s.initial), len(s.clients)
    gradients = [zeros_like(s.initial) for _ in s.clients]
    trained = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort, received = list(s.cohorts[t]), model
        for i in cohort:
            trained[i], gradients[i] = train_client(
                received, gradients[i], alphas[i], s.batches[t][i], s.x, s.y, s.learning_rate[t]
            )
            away = subtract(trained[i], received)
            h = subtract(h, scale(alpha / count, away))  # N, not the cohort's size
        if cohort:
            mean = average([trained[i] for i in cohort], s.sizes, cohort, "uniform")
            model = subtract(mean, scale(1.0 / alpha, h))
        history.append(
            {
                "global": model,
                "average": mean,
                "everyone": combine([1.0 / count] * count, trained),
                "h": h,
                "gradients": list(gradients),
                "trained": list(trained),
            }
        )
    return history
