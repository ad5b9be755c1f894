"""FedSAM (Caldarola et al., ECCV 2022; Qu et al., ICML 2022) and MoFedSAM (Qu et al., Alg. 2)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import (
    add,
    combine,
    loss_and_gradient,
    scale,
    squared_norm,
    subtract,
    zeros_like,
)


def perturbation(params, gradient, rho, eta=None):
    """e = rho t^2 g / |t g|; t is 1 without `eta`, else |w| + eta for kernels, 1 for biases."""
    scales = {
        layer: {
            name: np.abs(leaf) + eta if eta is not None and name == "kernel" else np.ones_like(leaf)
            for name, leaf in leaves.items()
        }
        for layer, leaves in params.items()
    }

    def times(a, b):
        return {layer: {name: a[layer][name] * b[layer][name] for name in a[layer]} for layer in a}

    scaled = times(scales, gradient)
    length = np.sqrt(squared_norm(scaled))
    return scale(rho / length, times(scales, scaled))


def run(s, *, rho=0.1, eta=None, beta=None):
    """FedAvg with SAM steps; with `beta`, mixed with the server's last direction.

    Args:
      rho: length of the perturbation.
      eta: of ASAM; None: SAM.
      beta: weight of the own gradient in MoFedSAM; None: FedSAM.

    Returns:
      After every round, {"global": w, "direction": D}.
    """
    model, direction, history = s.initial, zeros_like(s.initial), []
    for t in range(s.rounds):
        cohort, trained = list(s.cohorts[t]), []
        for i in cohort:
            own = model
            for batch in s.batches[t][i]:
                _, gradient = loss_and_gradient(own, s.x[batch], s.y[batch])
                trial = add(own, perturbation(own, gradient, rho, eta))
                _, gradient = loss_and_gradient(trial, s.x[batch], s.y[batch])
                if beta is not None:
                    gradient = combine([beta, 1 - beta], [gradient, direction])
                own = subtract(own, scale(s.learning_rate[t], gradient))
            trained.append(own)
        total = sum(s.sizes[i] for i in cohort)
        steps = sum(s.sizes[i] * len(s.batches[t][i]) for i in cohort) / max(total, 1)
        if steps:
            mean = average(trained, s.sizes, cohort)
            direction = scale(1 / (s.learning_rate[t] * steps), subtract(model, mean))
            model = mean
        history.append({"global": model, "direction": direction})
    return history
