"""FedDWA's weights: a worked example, the exact minimizer, identical clients."""

import numpy as np

from tests.references import feddwa, network
from tests.references.small import flat

# ------------------------------------------------------------------ FedDWA: the weights


def test_weights_of_the_worked_example():
    weights = feddwa.inverse_distance_weights
    np.testing.assert_allclose(weights([1, 2, 4]), [4 / 7, 2 / 7, 1 / 7], rtol=1e-15)
    np.testing.assert_allclose(weights([1, 2, 4], 2), [2 / 3, 1 / 3, 0], rtol=1e-15)
    np.testing.assert_array_equal(weights([1, 2, 4], 5), weights([1, 2, 4], 3))
    np.testing.assert_array_equal(weights([3, 1, 1, 1], 2), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(weights([5, 10, 20]), weights([1, 2, 4]), rtol=1e-15)
    np.testing.assert_allclose(weights([0.0, 1.0, 0.0], tiny=1e-12), [0.5, 0, 0.5], atol=1e-12)


def test_exact_weights_on_orthogonal_differences_are_the_inverse_distances(setting):
    guide = setting.initial
    lengths = np.array([1.0, 2.0, 4.0])
    directions = np.eye(len(flat(guide)))[:3] * np.sqrt(lengths)[:, None]
    trained = [network.unflat(flat(guide) + row, guide) for row in directions]
    expected = feddwa.inverse_distance_weights(lengths)
    np.testing.assert_allclose(feddwa.exact_weights(guide, trained), expected, rtol=1e-12)
