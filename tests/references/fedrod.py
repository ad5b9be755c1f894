"""FedRoD: a generic and a personalized predictor (Chen and Chao, ICLR 2022, Algorithm 1).

A client's model is the generic one, body and head, and a personal head beside it, whose logits are
added: {**generic, "personal_head": {"kernel": [h, C], "bias": [C]}}.
"""

import numpy as np

from tests.references.averaging import average
from tests.references.network import (
    backward,
    cross_entropy,
    features,
    linear,
    logits,
    scale,
    subtract,
)


def log_counts(labels, classes):
    """log n_ic [C] of a client's labels; -inf for a class without samples."""
    counts = np.bincount(labels, minlength=classes)
    return np.where(counts > 0, np.log(np.maximum(counts, 1)), -np.inf)


def generic_loss(model, x, y, offset):
    """Balanced softmax: the cross-entropy of logits + log n_ic, and its gradient.

    A class without samples leaves the softmax.
    """
    loss, slope = cross_entropy(logits(model, x) + offset, y)
    return loss, backward(model, x, slope)


def personal_loss(model, own, x, y):
    """Plain cross-entropy of both heads' logits, and its gradient by only the personal head."""
    inner = features(model, x)
    loss, slope = cross_entropy(linear(model["head"], inner) + linear(own, inner), y)
    return loss, {"kernel": inner.T @ slope, "bias": slope.sum(axis=0)}


def train_client(model, own, batches, x, y, learning_rate, offset, personal_weight=1.0):
    """Both losses of one forward pass, so both gradients are taken before either step."""
    for batch in batches:
        _, gradient = generic_loss(model, x[batch], y[batch], offset)
        _, of_own = personal_loss(model, own, x[batch], y[batch])
        model = subtract(model, scale(learning_rate, gradient))
        own = {name: own[name] - personal_weight * learning_rate * of_own[name] for name in own}
    return model, own


def run(s, *, personal_weight=1.0):
    """The server averages body and generic head; personal heads stay with their clients.

    Args:
      personal_weight: the personal head's rate over the others'.

    Returns:
      After every round, "global": the generic model, "personal_heads": [N], "personalized": [N],
      the two together, "trained": {client: its generic model as it was sent, and its head}.
    """
    classes = len(s.initial["head"]["bias"])
    offsets = [log_counts(s.y[client["samples"]], classes) for client in s.clients]
    model = s.initial
    own = [s.initial["head"]] * len(s.clients)
    history = []
    for t in range(s.rounds):
        cohort, sent = list(s.cohorts[t]), {}
        for i in cohort:
            sent[i], own[i] = train_client(
                model, own[i], *s.work(t, i), offsets[i], personal_weight
            )
        if cohort:
            model = average([sent[i] for i in cohort], s.sizes, cohort)
        history.append(
            {
                "global": model,
                "personal_heads": list(own),
                "personalized": [{**model, "personal_head": head} for head in own],
                "trained": {i: {**sent[i], "personal_head": own[i]} for i in cohort},
            }
        )
    return history
