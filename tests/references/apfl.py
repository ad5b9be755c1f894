"""APFL: adaptive mixtures of a global and a local model (Deng et al., 2020, Algorithm 1)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import (
    add,
    backward,
    combine,
    cross_entropy,
    dot,
    logits,
    loss_and_gradient,
    scale,
    subtract,
)

CADENCES = ("first_step", "first_epoch", "every_step", "never")
ALPHA_DECAY = 0.02  # of the published code, in the form "logits" only


def mixture(alpha, own, shared):
    """alpha v + (1 - alpha) w."""
    return combine([alpha, 1.0 - alpha], [own, shared])


def mixed_logits(alpha, own, shared, x):
    """alpha f(v) + (1 - alpha) f(w): what the form "logits" predicts with."""
    return alpha * logits(own, x) + (1.0 - alpha) * logits(shared, x)


def parameter_step(shared, own, alpha, x, y, rate):
    """One step on a minibatch: (w', v', the slope of the loss with respect to alpha).

    All from the old w, v and alpha: w' = w - eta g(w), v' = v - eta alpha g(vbar), and the slope
    <v - w, g(vbar)>, where vbar is the mixture of the parameters.
    """
    _, gradient = loss_and_gradient(mixture(alpha, own, shared), x, y)
    slope = dot(subtract(own, shared), gradient)
    _, of_shared = loss_and_gradient(shared, x, y)
    return (
        subtract(shared, scale(rate, of_shared)),
        subtract(own, scale(rate * alpha, gradient)),
        slope,
    )


def logits_step(shared, own, alpha, x, y, rate):
    """The same as in the published code: outputs are mixed, w steps first, v sees the new w'.

    The slope is <v' - w', alpha dL/dv + (1 - alpha) dL/dw'> + 0.02 alpha.
    """
    _, of_shared = loss_and_gradient(shared, x, y)
    shared = subtract(shared, scale(rate, of_shared))
    _, slope = cross_entropy(mixed_logits(alpha, own, shared, x), y)
    by_own = backward(own, x, alpha * slope)
    by_shared = backward(shared, x, (1.0 - alpha) * slope)
    own = subtract(own, scale(rate, by_own))
    mixed = add(scale(alpha, by_own), scale(1.0 - alpha, by_shared))
    return shared, own, dot(subtract(own, shared), mixed) + ALPHA_DECAY * alpha


def run(s, *, alpha=0.5, adapt="first_step", form="parameters", weighting="size", epoch_steps=None):
    """Every client trains the global model, and its own model as a part of a mixture of both.

    Args:
      alpha: every client's first weight of its own model.
      adapt: at which local steps of a round alpha moves, one of `CADENCES`.
      form: "parameters" (the paper) or "logits" (the published code).
      weighting: of the average, "size" or "uniform" (the published code).
      epoch_steps: steps of each client's first epoch, read by the cadence "first_epoch".

    Returns:
      After every round, "global": w, "own": [N], the v_i, "alpha": [N], "trained": {client: w_i}
      of the cohort; in the form "parameters" also "personalized": [N], the mixtures with the
      aggregated w. The mixtures of the form "logits" are not single models: see `mixed_logits`.
    """
    step = parameter_step if form == "parameters" else logits_step
    model, own = s.initial, [s.initial for _ in s.clients]
    alphas = np.full(len(s.clients), float(alpha))
    history = []
    for t in range(s.rounds):
        cohort, trained = list(s.cohorts[t]), {}
        for i in cohort:
            moving = {
                "first_step": 1,
                "first_epoch": epoch_steps[i] if adapt == "first_epoch" else None,
                "every_step": len(s.batches[t][i]),
                "never": 0,
            }[adapt]
            shared = model
            for k, batch in enumerate(s.batches[t][i]):
                shared, own[i], slope = step(
                    shared, own[i], alphas[i], s.x[batch], s.y[batch], s.learning_rate[t]
                )
                if k < moving:
                    alphas[i] = np.clip(alphas[i] - s.learning_rate[t] * slope, 0.0, 1.0)
            trained[i] = shared
        if cohort:
            model = average([trained[i] for i in cohort], s.sizes, cohort, weighting)
        models = {"global": model, "own": list(own), "alpha": alphas.copy(), "trained": trained}
        if form == "parameters":
            models["personalized"] = [
                mixture(alphas[i], own[i], model) for i in range(len(s.clients))
            ]
        history.append(models)
    return history
