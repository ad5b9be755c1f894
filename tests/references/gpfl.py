"""GPFL: a valve between features, a personal head and class embeddings (ICCV 2023)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import backward, cross_entropy, features, linear


def normed(layer, condition):
    """(LN(relu(W c + b)), what its gradient needs) of a condition c [d]."""
    above = linear(layer, condition)
    active = np.maximum(above, 0.0)
    deviation = np.sqrt(active.var() + 1e-5)
    unit = (active - active.mean()) / deviation
    return unit * layer["scale"] + layer["offset"], (above, deviation, unit)


def normed_gradient(layer, condition, slope):
    """The gradient for a layer of `normed` of a loss with slope [d] with respect to its output."""
    _, (above, deviation, unit) = normed(layer, condition)
    inner = slope * layer["scale"]
    inner = (inner - inner.mean() - unit * (inner * unit).mean()) / deviation * (above > 0)
    return {
        "kernel": np.outer(condition, inner),
        "bias": inner,
        "scale": slope * unit,
        "offset": slope,
    }


def valve(model, z, condition):
    """(relu((1 + gamma) z + beta), which of its entries are positive, 1 + gamma)."""
    gamma, _ = normed(model["gamma"], condition)
    beta, _ = normed(model["beta"], condition)
    out = z * (1 + gamma) + beta
    return np.maximum(out, 0.0), out > 0, 1 + gamma


def valve_gradient(model, z, condition, slope):
    """(gradients for gamma and beta, slope with respect to z)."""
    _, on, factor = valve(model, z, condition)
    slope = slope * on
    layers = {
        "gamma": normed_gradient(model["gamma"], condition, (slope * z).sum(axis=0)),
        "beta": normed_gradient(model["beta"], condition, slope.sum(axis=0)),
    }
    return layers, slope * factor


def logits(model, x, share):
    """What a client with class shares [C] predicts."""
    z = features({"hidden": model["hidden"]}, x)
    return linear(model["head"], valve(model, z, share @ model["embeddings"]["e"])[0])


def unit_rows(rows):
    """(rows over their lengths, lengths); rows of zeros stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    length = np.where(length > 0, length, 1.0)
    return rows / length, length


def through_unit(unit, length, slope):
    """The slope with respect to rows of one with respect to their directions."""
    slope = np.where(np.abs(unit).sum(axis=1, keepdims=True) > 0, slope, 0.0)
    return (slope - unit * (unit * slope).sum(axis=1, keepdims=True)) / length


def loss_and_gradient(model, fixed, x, y, share, weight):
    """The local loss on a minibatch under the received embeddings `fixed`, and its gradient."""
    body, e = {"hidden": model["hidden"]}, model["embeddings"]["e"]
    z = features(body, x)
    own, common = share @ fixed, fixed.mean(axis=0)

    mine, _, _ = valve(model, z, own)
    loss, slope = cross_entropy(linear(model["head"], mine), y)
    head = {"kernel": mine.T @ slope, "bias": slope.sum(axis=0)}
    layers, below = valve_gradient(model, z, own, slope @ model["head"]["kernel"].T)

    guided, _, _ = valve(model, z, common)
    direction, length = unit_rows(guided)
    to, size = unit_rows(e)
    angle, slope = cross_entropy(direction @ to.T, y)
    moved = through_unit(to, size, slope.T @ direction)
    apart = guided - fixed[y]
    far = np.sqrt((apart**2).sum())
    back = through_unit(direction, length, slope @ to) + weight * apart / far
    more, further = valve_gradient(model, z, common, back)

    gradient = {
        name: {leaf: layers[name][leaf] + more[name][leaf] for leaf in layers[name]}
        for name in layers
    }
    zero = np.zeros((len(x), len(e)))
    behind = backward({**body, "head": model["head"]}, x, zero, below + further)
    gradient |= {"hidden": behind["hidden"], "head": head, "embeddings": {"e": moved}}
    return loss + angle + weight * far, gradient


def train(received, batches, x, y, share, rate, weight, decay):
    """A member's model after its minibatches."""
    model, fixed = received, received["embeddings"]["e"]
    for batch in batches:
        _, gradient = loss_and_gradient(model, fixed, x[batch], y[batch], share, weight)
        new = {}
        for name, layer in model.items():
            mu = decay if name in ("gamma", "beta", "embeddings") else 0.0
            new[name] = {
                leaf: value - rate * (gradient[name][leaf] + mu * value)
                for leaf, value in layer.items()
            }
        model = new
    return model


def run(s, *, weight=0.01, module_decay=0.1):
    """Rounds in which all but the heads is averaged.

    Args:
      s: its initial model has "gamma", "beta" and "embeddings" beside its layers.
      weight: of the distance to the received embeddings.
      module_decay: weight decay of gamma, beta and embeddings.

    Returns:
      After every round, "global": shared layers, "personalized": [N]; "shares": [N, C].
    """
    classes = len(s.initial["embeddings"]["e"])
    shares = np.array([np.bincount(s.y[c["samples"]], minlength=classes) for c in s.clients])
    shares = shares / shares.sum(axis=1, keepdims=True)
    heads, history = [s.initial["head"] for _ in s.clients], []
    shared = {name: layer for name, layer in s.initial.items() if name != "head"}
    for t in range(s.rounds):
        sent = []
        for i in s.cohorts[t]:
            start = {**shared, "head": heads[i]}
            model = train(
                start,
                s.batches[t][i],
                s.x,
                s.y,
                shares[i],
                s.learning_rate[t],
                weight,
                module_decay,
            )
            heads[i] = model["head"]
            sent.append({name: layer for name, layer in model.items() if name != "head"})
        if sent:
            shared = average(sent, s.sizes, s.cohorts[t])
        personalized = [{**shared, "head": head} for head in heads]
        history.append({"global": shared, "personalized": personalized, "shares": shares})
    return history
