"""FedBABU: body aggregation and body update (Oh et al., ICLR 2022, Algorithm 1)."""

import numpy as np

from tests.references.averaging import average
from tests.references.fedrep import body_of
from tests.references.network import flat, loss_and_gradient, unflat
from tests.references.optimizers import sgd_step

PARTS = ("full", "head", "body")


def layers_of_part(model, part):
    """The layers that fine-tuning moves."""
    return {"full": list(model), "head": ["head"], "body": body_of(model)}[part]


def descend(model, layers, batches, x, y, rate, momentum=0.0, weight_decay=0.0):
    """SGD whose momentum and decay don't touch other layers than `layers`."""
    part = {layer: model[layer] for layer in layers}
    velocity = np.zeros_like(flat(part))
    for batch in batches:
        _, gradient = loss_and_gradient({**model, **part}, x[batch], y[batch])
        slope = flat({layer: gradient[layer] for layer in layers})
        vector, velocity = sgd_step(flat(part), slope, velocity, rate, momentum, weight_decay)
        part = unflat(vector, part)
    return {**model, **part}


def run(
    s,
    *,
    momentum=0.0,
    weight_decay=0.0,
    weighting="uniform",
    tuning_batches=None,
    tuning_rate=0.001,
    tuning_momentum=0.9,
    part="full",
):
    """All rounds train and average bodies under the one first head; then each client tunes a copy.

    Args:
      momentum, weight_decay: of the local training; they act on the body only.
      weighting: of the bodies, "uniform" or "size".
      tuning_batches: [i], those of the fine-tuning after the last round, all its epochs.
      tuning_rate, tuning_momentum: its optimizer.
      part: what it moves, one of `PARTS`.

    Returns:
      After every round, "global", and "personalized": [N], the same for everybody. With
      `tuning_batches` the last round also has "tuned": [N].
    """
    model = s.initial
    body = body_of(s.initial)
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if cohort:
            uploads = []
            for i in cohort:
                trained = descend(
                    model,
                    body,
                    s.batches[t][i],
                    s.x,
                    s.y,
                    s.learning_rate[t],
                    momentum,
                    weight_decay,
                )
                uploads.append({layer: trained[layer] for layer in body})
            model = {**model, **average(uploads, s.sizes, cohort, weighting)}
        history.append({"global": model, "personalized": [model] * len(s.clients)})
    if tuning_batches is not None and history:
        layers = layers_of_part(s.initial, part)
        history[-1]["tuned"] = [
            descend(model, layers, own, s.x, s.y, tuning_rate, tuning_momentum)
            for own in tuning_batches
        ]
    return history
