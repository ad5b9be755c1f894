"""The small network with a projection in front of its head, as MOON's has one.

h = tanh(x W + b), z = relu(h W_1 + b_1) W_2 + b_2, and the head's logits of z. Layers are named
"hidden", "first", "second" and "head".
"""

import numpy as np

from tests.references.network import linear


def activations(params, x):
    """h, relu(h W_1 + b_1), z."""
    hidden = np.tanh(linear(params["hidden"], x))
    between = np.maximum(linear(params["first"], hidden), 0.0)
    return hidden, between, linear(params["second"], between)


def features(params, x):
    """z, [n, width]."""
    return activations(params, x)[-1]


def logits(params, x):
    """The network's output before the softmax, [n, C]."""
    return linear(params["head"], features(params, x))


def backward(params, x, slope, feature_slope=0.0):
    """The gradient of a loss with slope [n, C] in the logits, and [n, width] in z beside them."""
    hidden, between, z = activations(params, x)

    def layer(inputs, outward):
        return {"kernel": inputs.T @ outward, "bias": outward.sum(axis=0)}

    to_z = slope @ params["head"]["kernel"].T + feature_slope
    to_between = (to_z @ params["second"]["kernel"].T) * (between > 0)
    to_hidden = (to_between @ params["first"]["kernel"].T) * (1.0 - hidden**2)
    return {
        "hidden": layer(x, to_hidden),
        "first": layer(hidden, to_between),
        "second": layer(between, to_z),
        "head": layer(z, slope),
    }
