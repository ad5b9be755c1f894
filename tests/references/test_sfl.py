"""SFL's reference: graphs, the norms' gradients, FedAvg as its limit, a round by hand."""

import numpy as np

from tests.references import sfl_graph
from tests.references.small import (
    COUNT,
    differences,
)


def generator(seed=8, count=COUNT, width=3):
    rng = np.random.default_rng(seed)
    return {
        "embedding": tuple(rng.normal(size=(2, count, width))),
        "kernel": tuple(rng.uniform(-0.5, 0.5, size=(2, width, width))),
        "bias": tuple(rng.uniform(-0.5, 0.5, size=(2, width))),
    }


# ------------------------------------------------------------------ graphs


def test_label_graph_joins_clients_that_share_a_label():
    y = np.array([0, 1, 1, 2, 3, 3])
    clients = [{"samples": at} for at in ([0, 1], [2, 3], [4], [5, 3], [])]
    expected = [
        [1 / 2, 1 / 2, 0, 0, 0],
        [1 / 3, 1 / 3, 0, 1 / 3, 0],
        [0, 0, 1 / 2, 1 / 2, 0],
        [0, 1 / 3, 1 / 3, 1 / 3, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(sfl_graph.label_graph(clients, y), expected, rtol=1e-15)


def test_neighbours_are_near_by_angle_oneself_first():
    def at(x, y):
        return {"head": {"kernel": np.array([[x, y]]), "bias": np.zeros(1)}}

    models = [at(2, 1), at(9, 1), at(1, 8), at(1, 1)]  # the last one stands where the readout is
    graph = sfl_graph.neighbour_graph(models, at(1, 1), 2)
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    np.testing.assert_array_equal(graph, np.array(expected) / 2)
    np.testing.assert_array_equal(sfl_graph.neighbour_graph(models, at(1, 1), 1), np.eye(4))


def test_the_learned_graph_s_gradient_is_that_of_its_loss():
    start = generator()
    target, _ = sfl_graph.unit_rows(np.random.default_rng(1).random((COUNT, COUNT)))
    slopes = sfl_graph.fit_gradient(start, target)
    for name, pair in start.items():
        for k, value in enumerate(pair):

            def loss(vector, name=name, k=k, shape=value.shape):
                changed = list(start[name])
                changed[k] = vector.reshape(shape)
                return sfl_graph.fit_loss({**start, name: tuple(changed)}, target)

            expected = differences(loss, np.ravel(value))
            np.testing.assert_allclose(np.ravel(slopes[name][k]), expected, rtol=1e-5, atol=1e-9)
