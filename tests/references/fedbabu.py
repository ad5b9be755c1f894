"""FedBABU: body aggregation and body update (Oh et al., ICLR 2022, Algorithm 1)."""

import numpy as np

from tests.references.averaging import average
from tests.references.fedrep import body_of
from tests.references.network import flat, loss_and_gradient, unflat
from tests.references.optimizers import sgd_step

PARTS = ("full", "head", "body")


def layers_of_part(model, part):
    """The layers that fine-tuning moves."""
    if part not in PARTS:
        raise ValueError(f"Unknown part {part!r}. Valid: {', '.join(PARTS)}.")
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
    initial,
    clients,
    rounds,
    *,
    x,
    y,
    sizes,
    cohorts,
    batches,
    learning_rate,
    momentum=0.0,
    weight_decay=0.0,
    weighting="uniform",
    tuning_batches=None,
    tuning_rate=1e-3,
    tuning_momentum=0.9,
    part="full",
):
    """All rounds train and average bodies under the one first head; then each client tunes a copy.

    Args:
      initial: the model before the first round; its head stays everybody's.
      clients: one dict per client; only their number matters here.
      rounds: how many rounds.
      x, y: the samples of all clients, addressed by the batches.
      sizes: n_i, the number of training samples of every client.
      cohorts: per round, the participating clients; nobody leaves the body as it is.
      batches: batches[t][i] is the list of batches of client i in round t.
      learning_rate: one rate per round.
      momentum, weight_decay: of the local training; they act on the body only.
      weighting: of the bodies, "uniform" or "size".
      tuning_batches: [i], those of the fine-tuning after the last round, all its epochs.
      tuning_rate, tuning_momentum: its optimizer.
      part: what it moves, one of `PARTS`.

    Returns:
      After every round, "global", and "personalized": [N], the same for everybody. With
      `tuning_batches` the last round also has "tuned": [N].
    """
    model = initial
    body = body_of(initial)
    history = []
    for t in range(rounds):
        cohort = list(cohorts[t])
        if cohort:
            uploads = []
            for i in cohort:
                trained = descend(
                    model, body, batches[t][i], x, y, learning_rate[t], momentum, weight_decay
                )
                uploads.append({layer: trained[layer] for layer in body})
            model = {**model, **average(uploads, sizes, cohort, weighting)}
        history.append({"global": model, "personalized": [model] * len(clients)})
    if tuning_batches is not None and history:
        layers = layers_of_part(initial, part)
        history[-1]["tuned"] = [
            descend(model, layers, own, x, y, tuning_rate, tuning_momentum)
            for own in tuning_batches
        ]
    return history
