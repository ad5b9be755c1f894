"""Graphs between clients for SFL: given, from labels, from updates, learned from distances."""

import numpy as np

from tests.references.network import flat
from tests.references.similarity import cosine


def row_normalized(graph):
    """Rows over their sums; rows of zeros stay."""
    graph = np.asarray(graph, np.float64)
    total = graph.sum(axis=1, keepdims=True)
    return np.divide(graph, total, out=np.zeros_like(graph), where=total > 0)


def label_graph(clients, y):
    """Clients that share a training label, themselves included; rows sum to one."""
    held = [set(np.asarray(y)[np.asarray(client["samples"], int)]) for client in clients]
    edges = [[i == j or bool(a & b) for j, b in enumerate(held)] for i, a in enumerate(held)]
    return row_normalized(edges)


def neighbour_graph(models, readout, neighbours, ids=None):
    """The nearest by cosine of models[i] - readout, oneself first, ties to the lower id.

    By default the ids are the positions.
    """
    ids = range(len(models)) if ids is None else ids
    moves = [flat(model) - flat(readout) for model in models]
    edges = np.zeros((len(models), len(models)))
    for i, move in enumerate(moves):
        near = [cosine(move, other) for other in moves]
        order = sorted(range(len(models)), key=lambda j, i=i, near=near: (j != i, -near[j], ids[j]))
        edges[i, order[:neighbours]] = 1.0
    return row_normalized(edges)


# ------------------------------------------------------------------ the published code's SFL*

STEEPNESS = 3.0


def unit_rows(matrix):
    """Rows over their Euclidean lengths, those of zeros unchanged; and the lengths used."""
    length = np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    return matrix / length, length


def adjacency(generator):
    """relu(tanh(3 (V1 V2^T - V2 V1^T))), V_k = tanh(3 (E_k W_k + b_k)); with what led to it.

    Args:
      generator: {"embedding": (E_1, E_2) [N, d], "kernel": (W_1, W_2) [d, d], "bias": (b_1, b_2)}.
    """
    first, second = (
        np.tanh(STEEPNESS * (embedding @ kernel + bias))
        for embedding, kernel, bias in zip(
            generator["embedding"], generator["kernel"], generator["bias"], strict=True
        )
    )
    squashed = np.tanh(STEEPNESS * (first @ second.T - second @ first.T))
    return np.maximum(squashed, 0.0), (first, second, squashed)


def fit_gradient(generator, target):
    """The gradient of the mean square of unit rows less the target, in the shape of `generator`."""
    graph, (first, second, squashed) = adjacency(generator)
    unit, length = unit_rows(graph)
    slope = 2.0 * (unit - target) / unit.size
    inside = length > 1e-12  # below, the length is a constant
    slope = (slope - unit * inside * np.sum(slope * unit, axis=1, keepdims=True)) / length
    slope = slope * (squashed > 0) * (1.0 - squashed**2) * STEEPNESS
    slopes = ((slope - slope.T) @ second, (slope.T - slope) @ first)
    found = {"embedding": [], "kernel": [], "bias": []}
    for k, value in enumerate((first, second)):
        before = slopes[k] * (1.0 - value**2) * STEEPNESS
        found["embedding"].append(before @ generator["kernel"][k].T)
        found["kernel"].append(generator["embedding"][k].T @ before)
        found["bias"].append(before.sum(axis=0))
    return {name: tuple(pair) for name, pair in found.items()}


def learned_graph(models, generator, steps=10, rate=0.01, decay=1e-4, nearest=30):
    """The generator fitted to the models' distances by SGD, its largest entries, normalized.

    As in the published code, far clients are meant to get large entries. Rows without any entry
    are zero.
    """
    vectors = np.stack([flat(model) for model in models])
    distance = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)
    target, _ = unit_rows(distance)
    for _ in range(steps):
        slope = fit_gradient(generator, target)
        generator = {
            name: tuple(
                value - rate * (move + decay * value)
                for value, move in zip(generator[name], slope[name], strict=True)
            )
            for name in generator
        }
    graph, _ = adjacency(generator)
    for row in graph:
        row[np.argsort(-row, kind="stable")[nearest:]] = 0.0
    return row_normalized(graph)
