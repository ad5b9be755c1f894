"""SFL's reference: graphs by labels and of neighbours."""

import numpy as np

from tests.references import sfl_graph

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
