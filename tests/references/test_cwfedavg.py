"""cwFedAVG's reference: its weights, the regularizer's gradient, the rounds."""

import numpy as np

from tests.references import cwfedavg, network
from tests.references.small import (
    differences,
    flat,
)

# ------------------------------------------------------------------ the weights


def test_cwfedavg_weights_of_the_worked_example():
    shares = np.array([[0.5, 0.5], [0.25, 0.75]])
    weights = cwfedavg.class_weights((10, 30), shares)
    np.testing.assert_allclose(weights, [[0.4, 2 / 11 * 1.0], [0.6, 9 / 11]], rtol=1e-14)
    expected = [[0.2909, 0.7091], [0.2364, 0.7636]]
    np.testing.assert_allclose(cwfedavg.mixing_matrix(shares, weights), expected, atol=5e-5)


def test_cwfedavg_shares():
    np.testing.assert_allclose(cwfedavg.label_shares(np.array([2, 0, 2, 2]), 4), [0.25, 0, 0.75, 0])
    np.testing.assert_array_equal(cwfedavg.label_shares(np.array([], int), 4), 0.0)
    params = network.random_parameters(np.random.default_rng(0), 2, 2, 3)
    params["head"]["kernel"] = np.array([[3.0, 0.0, 0.0], [4.0, 0.0, 5.0]])
    np.testing.assert_allclose(cwfedavg.norm_shares(params), [0.5, 0.0, 0.5], rtol=1e-15)
    params["head"]["kernel"] = np.zeros((2, 3))
    np.testing.assert_allclose(cwfedavg.norm_shares(params), 1 / 3, rtol=1e-15)
    np.testing.assert_array_equal(
        flat(cwfedavg.regularizer_gradient(params, np.full(3, 1 / 3), 10.0)), 0.0
    )


def test_cwfedavg_regularizer_gradient_equals_central_differences(setting):
    params, target = setting.initial, np.array([0.6, 0.0, 0.1, 0.3])
    gradient = flat(cwfedavg.regularizer_gradient(params, target, 7.0))

    def penalty(vector):
        return cwfedavg.regularizer(network.unflat(vector, params), target, 7.0)

    numeric = differences(penalty, flat(params))
    np.testing.assert_allclose(gradient, numeric, rtol=1e-7, atol=1e-9)
    distance = np.linalg.norm(cwfedavg.norm_shares(params) - target)
    np.testing.assert_allclose(penalty(flat(params)), 3.5 * distance, rtol=1e-9)
    reached = cwfedavg.norm_shares(params)
    assert np.isfinite(flat(cwfedavg.regularizer_gradient(params, reached, 7.0))).all()
