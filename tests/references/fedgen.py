"""FedGen: clients also learn from features that a generator draws (ICML 2021)."""

import numpy as np

from tests.references.averaging import average, shares
from tests.references.network import (
    add,
    combine,
    cross_entropy,
    linear,
    loss_and_gradient,
    mapped,
    scale,
    subtract,
    zeros_like,
)


def hidden_of(generator, noise, labels, classes):
    """(inputs, deviations, normalized and final values of the hidden layer)."""
    layer, inputs = generator["hidden"], np.concatenate([noise, np.eye(classes)[labels]], axis=1)
    above = inputs @ layer["kernel"]
    deviation = np.sqrt(above.var(axis=0) + 1e-5)
    normed = (above - above.mean(axis=0)) / deviation
    return inputs, deviation, normed, normed * layer["scale"] + layer["offset"]


def generated(generator, noise, labels, classes):
    """Features [B, d] of noise and classes."""
    return linear(
        generator["out"], np.maximum(hidden_of(generator, noise, labels, classes)[3], 0.0)
    )


def generator_gradient(generator, noise, labels, classes, slope):
    """The generator's gradient of a loss with this slope [B, d] with respect to its features."""
    inputs, deviation, normed, out = hidden_of(generator, noise, labels, classes)
    active = np.maximum(out, 0.0)
    below = slope @ generator["out"]["kernel"].T * (out > 0)
    inner = below * generator["hidden"]["scale"]
    centred = inner - inner.mean(axis=0) - normed * (inner * normed).mean(axis=0)
    above = centred / deviation
    return {
        "hidden": {
            "kernel": inputs.T @ above,
            "scale": (below * normed).sum(axis=0),
            "offset": below.sum(axis=0),
        },
        "out": {"kernel": active.T @ slope, "bias": slope.sum(axis=0)},
    }


def train_generator(generator, memory, heads, weights, draws, rate, classes):
    """Adam's steps on the cross-entropy of the weighted mean of the heads' logits."""
    first, second, count = memory
    for noise, labels in draws:
        z = generated(generator, noise, labels, classes)
        head = combine(weights, [{"head": head} for head in heads])["head"]  # of the mean logits
        _, slope = cross_entropy(linear(head, z), labels)
        gradient = generator_gradient(generator, noise, labels, classes, slope @ head["kernel"].T)
        count += 1
        first = add(scale(0.9, first), scale(0.1, gradient))
        second = add(scale(0.999, second), scale(0.001, mapped(np.square, gradient)))
        generator = mapped(
            lambda g, m, v, k=count: (
                g - rate * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
            ),
            generator,
            first,
            second,
        )
    return generator, (first, second, count)


def run(s, *, generator, draw, weight=1.0, generator_rate=0.0003):
    """FedAvg with generated features.

    Args:
      generator: its first parameters.
      draw: draw(t, i, k, counts) -> (noise, labels) of step k of client i; of the server's for
        i None.
      weight, generator_rate: see `fedjax_pfl`.

    Returns:
      After every round, "global" and "generator".
    """
    classes = len(s.initial["head"]["bias"])
    model, counts = s.initial, np.zeros((len(s.clients), classes), int)
    memory, history = (zeros_like(generator), zeros_like(generator), 0), []
    for t in range(s.rounds):
        sent, known = [], counts.sum(axis=0)
        for i in s.cohorts[t]:
            own = model
            for k, batch in enumerate(s.batches[t][i]):
                _, gradient = loss_and_gradient(own, s.x[batch], s.y[batch])
                if known.any():
                    noise, labels = draw(t, i, k, known)
                    z = generated(generator, noise, labels, classes)
                    _, slope = cross_entropy(linear(own["head"], z), labels)
                    head = gradient["head"]
                    head = {
                        "kernel": head["kernel"] + weight * z.T @ slope,
                        "bias": head["bias"] + weight * slope.sum(axis=0),
                    }
                    gradient = {**gradient, "head": head}
                own = subtract(own, scale(s.learning_rate[t], gradient))
            sent.append(own)
        if sent:
            for i in s.cohorts[t]:
                counts[i] = np.bincount(s.y[s.clients[i]["samples"]], minlength=classes)
            draws = draw(t, None, None, counts.sum(axis=0))
            weights, heads = shares(s.sizes, s.cohorts[t]), [own["head"] for own in sent]
            generator, memory = train_generator(
                generator, memory, heads, weights, draws, generator_rate, classes
            )
            model = average(sent, s.sizes, s.cohorts[t])
        history.append({"global": model, "generator": generator})
    return history
