"""The smallest network worth training: tanh layers, cross-entropy, gradients by hand.

Parameters are a plain dict of dicts of float64 arrays:

    {"hidden": {"kernel": [d, h], "bias": [h]}, "head": {"kernel": [h, C], "bias": [C]}}

More hidden layers may follow the first; they're applied in the alphabetical order of their names.

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


def layers_of(block):
    """The names of a block's layers: a block is one layer's name or a tuple of several."""
    return (block,) if isinstance(block, str) else tuple(block)


# ------------------------------------------------------------------ the network


def random_parameters(rng, inputs, hidden, classes):
    """Parameters drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)); `rng` is a NumPy generator.

    `hidden` is the width of the one hidden layer, or a dict {name: width} of several.
    """

    def layer(fan_in, fan_out):
        bound = 1.0 / np.sqrt(fan_in)
        return {
            "kernel": rng.uniform(-bound, bound, (fan_in, fan_out)),
            "bias": rng.uniform(-bound, bound, fan_out),
        }

    params, width = {}, inputs
    widths = hidden if isinstance(hidden, dict) else {"hidden": hidden}
    for name in sorted(widths):
        params[name] = layer(width, widths[name])
        width = widths[name]
    return {**params, "head": layer(width, classes)}


def hidden_layers(params):
    """The names of the hidden layers in the order in which they're applied."""
    return sorted(set(params) - {"head"})


def linear(layer, inputs):
    """inputs W + b of one layer."""
    return inputs @ layer["kernel"] + layer["bias"]


def activations(params, x):
    """x, then what every hidden layer gives: h_k = tanh(h_{k-1} W_k + b_k)."""
    values = [x]
    for name in hidden_layers(params):
        values.append(np.tanh(linear(params[name], values[-1])))
    return values


def logits(params, x):
    """The network's output before the softmax, [n, C]."""
    return linear(params["head"], activations(params, x)[-1])


def predict(params, x):
    """The most likely class of every row of x."""
    return np.argmax(logits(params, x), axis=1)


def features(params, x):
    """The head's inputs, [n, width]: what the last hidden layer gives."""
    return activations(params, x)[-1]


def cross_entropy(scores, y):
    """(mean cross-entropy of logits [n, C], its slope with respect to them [n, C])."""
    count = len(y)
    scores = scores - scores.max(axis=1, keepdims=True)
    log_probability = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    slope = np.exp(log_probability)
    slope[np.arange(count), y] -= 1.0
    slope /= count
    return float(-log_probability[np.arange(count), y].mean()), slope


def backward(params, x, slope, feature_slope=0.0):
    """The gradient of a loss that looks at logits and features, in the shape of `params`.

    Args:
      params, x: the model and the rows that the loss is taken of.
      slope: the loss's slope with respect to the logits, [n, C].
      feature_slope: its slope with respect to the features, [n, width], where it looks at them
        other than through the logits.
    """
    values = activations(params, x)
    gradient = {"head": {"kernel": values[-1].T @ slope, "bias": slope.sum(axis=0)}}
    below = slope @ params["head"]["kernel"].T + feature_slope  # with respect to what a layer gives
    for name, inputs, outputs in reversed(
        list(zip(hidden_layers(params), values[:-1], values[1:], strict=True))
    ):
        slope = below * (1.0 - outputs**2)
        gradient[name] = {"kernel": inputs.T @ slope, "bias": slope.sum(axis=0)}
        below = slope @ params[name]["kernel"].T
    return {name: gradient[name] for name in params}


def loss_and_gradient(params, x, y):
    """Mean cross-entropy over the rows of x and its gradient, in the shape of `params`."""
    loss, slope = cross_entropy(logits(params, x), y)
    return loss, backward(params, x, slope)


def hessian_vector_product(params, x, y, direction):
    """H d: how the gradient of `loss_and_gradient` changes along d, in the shape of `params`.

    Exact: every line of the gradient's computation is differentiated along d (Pearlmutter, 1994).
    Names that begin with `d_` are these derivatives.
    """
    values = activations(params, x)
    d_values = [np.zeros_like(x)]
    for name, inputs, outputs in zip(hidden_layers(params), values[:-1], values[1:], strict=True):
        moved = inputs @ direction[name]["kernel"] + direction[name]["bias"]
        moved = moved + d_values[-1] @ params[name]["kernel"]
        d_values.append((1.0 - outputs**2) * moved)
    head, d_head = params["head"], direction["head"]
    _, slope = cross_entropy(logits(params, x), y)
    probability = slope * len(y)
    probability[np.arange(len(y)), y] += 1.0
    d_scores = values[-1] @ d_head["kernel"] + d_head["bias"] + d_values[-1] @ head["kernel"]
    d_slope = d_scores - (probability * d_scores).sum(axis=1, keepdims=True)
    d_slope = probability * d_slope / len(y)

    product = {
        "head": {
            "kernel": values[-1].T @ d_slope + d_values[-1].T @ slope,
            "bias": d_slope.sum(axis=0),
        }
    }
    layer, d_layer = head, d_head
    for k, name in reversed(list(enumerate(hidden_layers(params)))):
        inputs, outputs, d_inputs, d_outputs = *values[k : k + 2], *d_values[k : k + 2]
        below = slope @ layer["kernel"].T
        d_below = d_slope @ layer["kernel"].T + slope @ d_layer["kernel"].T
        slope = below * (1.0 - outputs**2)
        d_slope = d_below * (1.0 - outputs**2) - below * 2.0 * outputs * d_outputs
        product[name] = {
            "kernel": inputs.T @ d_slope + d_inputs.T @ slope,
            "bias": d_slope.sum(axis=0),
        }
        layer, d_layer = params[name], direction[name]
    return {name: product[name] for name in params}
