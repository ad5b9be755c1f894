"""The smallest network worth training: two layers, tanh, cross-entropy, gradients by hand.

Parameters are a plain dict of dicts of float64 arrays:

    {"hidden": {"kernel": [d, h], "bias": [h]}, "head": {"kernel": [h, C], "bias": [C]}}

Nothing here changes an array in place, so models may be kept and shared freely.
"""

import numpy as np

# ------------------------------------------------------------------ arithmetic on parameters


def mapped(function, *models):
    """The dict whose every leaf is `function` of the corresponding leaves of `models`."""
    return {
        layer: {
            name: function(*(np.asarray(model[layer][name], np.float64) for model in models))
            for name in leaves
        }
        for layer, leaves in models[0].items()
    }


def add(a, b):
    """a + b."""
    return mapped(np.add, a, b)


def subtract(a, b):
    """a - b."""
    return mapped(np.subtract, a, b)


def scale(factor, a):
    """factor * a."""
    return mapped(lambda leaf: factor * leaf, a)


def zeros_like(a):
    """A model of zeros."""
    return mapped(np.zeros_like, a)


def combine(weights, models):
    """sum_j weights[j] * models[j], added one model at a time."""
    total = zeros_like(models[0])
    for weight, model in zip(weights, models, strict=True):
        total = add(total, scale(weight, model))
    return total


def flat(a):
    """All parameters as one vector: layers, then leaves, in alphabetical order."""
    return np.concatenate(
        [np.ravel(a[layer][name]) for layer in sorted(a) for name in sorted(a[layer])]
    )


def unflat(vector, like):
    """The inverse of `flat`, in the shapes of `like`."""
    model = {layer: dict(leaves) for layer, leaves in like.items()}
    start = 0
    for layer in sorted(like):
        for name in sorted(like[layer]):
            shape = np.shape(like[layer][name])
            stop = start + int(np.prod(shape))
            model[layer][name] = np.reshape(vector[start:stop], shape)
            start = stop
    return model


def dot(a, b):
    """Inner product of two models."""
    return float(np.dot(flat(a), flat(b)))


def squared_norm(a):
    """||a||^2."""
    return dot(a, a)


def squared_distance(a, b):
    """||a - b||^2, by subtracting first."""
    return squared_norm(subtract(a, b))


# ------------------------------------------------------------------ the network


def random_parameters(rng, inputs, hidden, classes):
    """Parameters drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)); `rng` is a NumPy generator."""

    def layer(fan_in, fan_out):
        bound = 1.0 / np.sqrt(fan_in)
        return {
            "kernel": rng.uniform(-bound, bound, (fan_in, fan_out)),
            "bias": rng.uniform(-bound, bound, fan_out),
        }

    return {"hidden": layer(inputs, hidden), "head": layer(hidden, classes)}


def features(params, x):
    """tanh(x W1 + b1)."""
    return np.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])


def logits(params, x):
    """The network's output before the softmax, [n, C]."""
    return features(params, x) @ params["head"]["kernel"] + params["head"]["bias"]


def predict(params, x):
    """The most likely class of every row of x."""
    return np.argmax(logits(params, x), axis=1)


def loss_and_gradient(params, x, y):
    """Mean cross-entropy over the rows of x and its gradient, in the shape of `params`."""
    count = len(y)
    activation = features(params, x)
    scores = activation @ params["head"]["kernel"] + params["head"]["bias"]
    scores = scores - scores.max(axis=1, keepdims=True)
    log_probability = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    loss = -log_probability[np.arange(count), y].mean()

    d_scores = np.exp(log_probability)
    d_scores[np.arange(count), y] -= 1.0
    d_scores /= count
    d_hidden = (d_scores @ params["head"]["kernel"].T) * (1.0 - activation**2)
    gradient = {
        "hidden": {"kernel": x.T @ d_hidden, "bias": d_hidden.sum(axis=0)},
        "head": {"kernel": activation.T @ d_scores, "bias": d_scores.sum(axis=0)},
    }
    return float(loss), gradient
