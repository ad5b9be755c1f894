"""meta-L2C's attention: how alike two clients' updates are (Li et al., CVPR 2022).

Its form is that of the authors' later code. An update is the common initial model less a client's
trained one, divided by its norm. Each tensor is a list of rows, one for each unit that it leads to;
an encoder of the tensor's own embeds a row as tanh(tanh(row W1 + b1) W2 + b2). A score is the mean
over tensors, and within each over its rows, of the embeddings' inner products.

An encoder is a dict {layer: {name: (first, second)}} of linear layers {"kernel", "bias"}.
"""

import numpy as np

from tests.references.network import flat, linear, scale, subtract


def rows_of(leaf):
    """[units, inputs]: columns of a kernel, elements of a bias."""
    leaf = np.asarray(leaf, np.float64)
    return np.moveaxis(leaf, -1, 0).reshape(leaf.shape[-1], -1)


def update_of(initial, trained):
    """(initial - trained) / its norm; 0 where they are equal."""
    moved = subtract(initial, trained)
    return scale(1.0 / (np.linalg.norm(flat(moved)) + 1e-10), moved)


def embedded(layers, rows):
    """(inner, outer): both layers' tanh."""
    inner = np.tanh(linear(layers[0], rows))
    return inner, np.tanh(linear(layers[1], inner))


def scores(encoder, updates, client):
    """How alike the updates of each of {j: update} and of `client` are, in their order."""
    found = np.zeros(len(updates))
    tensors = [(name, leaf) for name in encoder for leaf in encoder[name]]
    for name, leaf in tensors:
        layers = encoder[name][leaf]
        outer = {j: embedded(layers, rows_of(u[name][leaf]))[1] for j, u in updates.items()}
        found += [np.sum(outer[j] * outer[client]) / len(outer[j]) for j in updates]
    return found / len(tensors)


def scores_gradient(encoder, updates, client, slope):
    """Gradient of the sum of slope[j] times the score of j by the encoder, in its shape."""
    tensors = [(name, leaf) for name in encoder for leaf in encoder[name]]
    gradient = {name: {} for name in encoder}
    for name, leaf in tensors:
        layers = encoder[name][leaf]
        rows = {j: rows_of(u[name][leaf]) for j, u in updates.items()}
        inner, outer = {}, {}
        for j in updates:
            inner[j], outer[j] = embedded(layers, rows[j])
        share = 1.0 / len(outer[client]) / len(tensors)
        back = {j: share * slope[j] * outer[client] for j in updates}
        back[client] = back[client] + share * sum(slope[j] * outer[j] for j in updates)
        total = [{key: np.zeros_like(value) for key, value in layer.items()} for layer in layers]
        for j in updates:
            second = back[j] * (1.0 - outer[j] ** 2)
            first = (second @ layers[1]["kernel"].T) * (1.0 - inner[j] ** 2)
            for part, below, above in ((0, rows[j], first), (1, inner[j], second)):
                total[part]["kernel"] += below.T @ above
                total[part]["bias"] += above.sum(axis=0)
        gradient[name][leaf] = tuple(total)
    return gradient


def numbers(encoder):
    """All parameters as one vector."""
    return np.concatenate([np.ravel(part[key]) for part, key in _parts(encoder)])


def rebuilt(vector, encoder):
    """The inverse of `numbers`, in the shapes of `encoder`."""
    pieces, start = [], 0
    for part, key in _parts(encoder):
        pieces.append(vector[start : start + part[key].size].reshape(part[key].shape))
        start += part[key].size
    rest = iter(pieces)
    return {
        name: {
            leaf: tuple({key: next(rest) for key in ("kernel", "bias")} for _ in range(2))
            for leaf in encoder[name]
        }
        for name in encoder
    }


def _parts(encoder):
    return [
        (layer, key)
        for name in encoder
        for leaf in encoder[name]
        for layer in encoder[name][leaf]
        for key in ("kernel", "bias")
    ]
