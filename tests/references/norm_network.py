"""A network with a convolution and batch normalization, in training and in evaluation mode.

Inputs are images [n, h, w, c]: a convolution whose zero padding keeps the size, batch
normalization of its channels, tanh, a linear head on all values. Parameters and statistics are one
dict of layers, so that `network`'s arithmetic holds for them:

    {"conv": {"kernel": [k, k, c, f], "bias": [f]},
     "bn": {"scale": [f], "bias": [f], "mean": [f], "var": [f]},
     "head": {"kernel": [h w f, C], "bias": [C]}}
"""

import numpy as np

from tests.references.network import add, cross_entropy, scale

EPSILON, MOMENTUM = 1e-5, 0.1


def convolution(x, kernel, bias):
    """out[n, i, j, f] = bias[f] + sum_abc padded[n, i + a, j + b, c] kernel[a, b, c, f]."""
    count, height, width, _ = x.shape
    size = kernel.shape[0]
    edge = size // 2
    padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    out = np.zeros((count, height, width, kernel.shape[-1]))
    for i in range(height):
        for j in range(width):
            window = padded[:, i : i + size, j : j + size]
            out[:, i, j] = np.einsum("nabc,abcf->nf", window, kernel) + bias
    return out


def kernel_gradient(x, slope, size):
    """The slope of a convolution's output, carried over to its kernel."""
    edge = size // 2
    padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    gradient = np.zeros((size, size, x.shape[-1], slope.shape[-1]))
    for i in range(slope.shape[1]):
        for j in range(slope.shape[2]):
            window = padded[:, i : i + size, j : j + size]
            gradient += np.einsum("nabc,nf->abcf", window, slope[:, i, j])
    return gradient


def logits(model, x):
    """Evaluation mode: normalized with the running statistics."""
    sums = convolution(x, model["conv"]["kernel"], model["conv"]["bias"])
    norm = model["bn"]
    normal = (sums - norm["mean"]) / np.sqrt(norm["var"] + EPSILON)
    inner = np.tanh(norm["scale"] * normal + norm["bias"]).reshape(len(x), -1)
    return inner @ model["head"]["kernel"] + model["head"]["bias"]


def training_loss(model, x, y):
    """Training mode: (mean cross-entropy, its gradient, the statistics after the batch).

    Normalized with the batch's mean and biased variance. The running mean and the running unbiased
    variance move a tenth of the way; the variance does not move where a channel has one value.
    """
    conv, norm, head = model["conv"], model["bn"], model["head"]
    sums = convolution(x, conv["kernel"], conv["bias"])
    rows = sums.reshape(-1, sums.shape[-1])
    mean, var = rows.mean(axis=0), rows.var(axis=0)
    inverse = 1 / np.sqrt(var + EPSILON)
    normal = (rows - mean) * inverse
    inner = np.tanh(norm["scale"] * normal + norm["bias"])
    flat = inner.reshape(len(x), -1)
    loss, slope = cross_entropy(flat @ head["kernel"] + head["bias"], y)

    gradient = {"head": {"kernel": flat.T @ slope, "bias": slope.sum(axis=0)}}
    back = (slope @ head["kernel"].T).reshape(inner.shape) * (1.0 - inner**2)
    gradient["bn"] = {"scale": (back * normal).sum(axis=0), "bias": back.sum(axis=0)}
    back = back * norm["scale"]
    back = inverse * (back - back.mean(axis=0) - normal * (back * normal).mean(axis=0))
    back = back.reshape(sums.shape)
    size = conv["kernel"].shape[0]
    gradient["conv"] = {
        "kernel": kernel_gradient(x, back, size),
        "bias": back.sum(axis=(0, 1, 2)),
    }
    statistics = {"mean": (1 - MOMENTUM) * norm["mean"] + MOMENTUM * mean, "var": norm["var"]}
    if len(rows) > 1:
        unbiased = var * len(rows) / (len(rows) - 1)
        statistics["var"] = (1 - MOMENTUM) * norm["var"] + MOMENTUM * unbiased
    return loss, gradient, statistics


def sgd(momentum=0.0, decay=0.0):
    """A client's local steps: v <- momentum v + (g + decay theta), theta <- theta - eta v.

    The velocity starts at zero in every round.

    Returns:
      train(model, batches, x, y, learning_rate) -> model.
    """

    def train(model, batches, x, y, learning_rate):
        velocity = None
        for batch in batches:
            _, gradient, statistics = training_loss(model, x[batch], y[batch])
            pull = {
                layer: {name: g + decay * model[layer][name] for name, g in leaves.items()}
                for layer, leaves in gradient.items()
            }
            if velocity is None:
                velocity = pull
            else:
                velocity = add(scale(momentum, velocity), pull)
            model = {
                layer: {
                    **leaves,
                    **{
                        name: leaves[name] - learning_rate * v
                        for name, v in velocity[layer].items()
                    },
                }
                for layer, leaves in model.items()
            }
            model["bn"] = {**model["bn"], **statistics}
        return model

    return train
