"""APFL's reference: limits, both slopes by differences, cadences, and what public codes do."""

import numpy as np
import pytest

from tests.references import apfl, network
from tests.references.small import (
    differences,
    flat,
)


@pytest.fixture
def pair(setting):
    """(w, v, alpha, x, y): a shared and an own model, and one minibatch."""
    rng = np.random.default_rng(4)
    own = network.random_parameters(rng, 5, 6, 4)
    return setting["initial"], own, 0.3, setting["x"][9:13], setting["y"][9:13]


def test_steps_follow_the_slopes_of_the_mixture(pair):
    w, v, alpha, x, y = pair

    def loss(own, a):
        return network.loss_and_gradient(apfl.mixture(a, own, w), x, y)[0]

    shared, own, slope = apfl.parameter_step(w, v, alpha, x, y, 0.5)
    by_own = differences(lambda vector: loss(network.unflat(vector, v), alpha), flat(v))
    np.testing.assert_allclose(flat(own), flat(v) - 0.5 * by_own, rtol=1e-7, atol=1e-9)
    by_alpha = differences(lambda a: loss(v, a[0]), np.array([alpha]))
    np.testing.assert_allclose(slope, by_alpha[0], rtol=1e-8)
    step = 0.5 * flat(network.loss_and_gradient(w, x, y)[1])
    np.testing.assert_allclose(flat(shared), flat(w) - step, rtol=1e-13)


def test_steps_on_mixed_logits_follow_the_published_code(pair):
    w, v, alpha, x, y = pair

    def loss(own, shared):
        return network.cross_entropy(apfl.mixed_logits(alpha, own, shared, x), y)[0]

    shared, own, slope = apfl.logits_step(w, v, alpha, x, y, 0.5)
    alone, *_ = apfl.parameter_step(w, v, alpha, x, y, 0.5)
    np.testing.assert_array_equal(flat(shared), flat(alone))
    by_own = differences(lambda vector: loss(network.unflat(vector, v), shared), flat(v))
    by_shared = differences(lambda vector: loss(v, network.unflat(vector, w)), flat(shared))
    np.testing.assert_allclose(flat(own), flat(v) - 0.5 * by_own, rtol=1e-7, atol=1e-9)
    mixed = alpha * by_own + (1 - alpha) * by_shared
    expected = (flat(own) - flat(shared)) @ mixed + 0.02 * alpha
    np.testing.assert_allclose(slope, expected, rtol=1e-7)
    np.testing.assert_allclose(
        apfl.mixed_logits(1.0, v, w, x), network.logits(v, x), rtol=1e-14, atol=1e-14
    )
