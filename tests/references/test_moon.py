"""MOON's reference: the contrast and its slopes, FedAvg as limit, what stands for a last model."""

import numpy as np
import pytest

from tests.references import moon, network


@pytest.fixture
def three(setting):
    """A model in training, a global and a previous one, and a minibatch."""
    rng = np.random.default_rng(4)
    models = [network.random_parameters(rng, 5, {"b": 4, "a": 6}, 4) for _ in range(3)]
    return *models, setting["x"][9:16], setting["y"][9:16]


def test_contrast_is_the_softmax_of_two_cosines():
    z = np.array([[3.0, 0.0], [0.0, 2.0]])
    near, far = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 5.0], [0.0, -1.0]])
    loss, _ = moon.contrast(z, near, far, 0.5)
    pairs = [(1.0, 0.0), (np.sqrt(0.5), -1.0)]
    each = [-np.log(np.exp(a / 0.5) / (np.exp(a / 0.5) + np.exp(b / 0.5))) for a, b in pairs]
    np.testing.assert_allclose(loss, np.mean(each), rtol=1e-14)
    loss, slope = moon.contrast(z, near, near, 0.5)
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-15)
    np.testing.assert_array_equal(slope, 0.0)
    loss, slope = moon.contrast(z, near, -near, 1e-4)  # nothing overflows
    assert 0.0 <= loss < 1e-300 and np.isfinite(slope).all()
    loss, slope = moon.contrast(np.zeros((1, 2)), near[:1], far[:1], 0.5)
    assert loss == np.log(2) and not slope.any()


def test_the_term_draws_features_to_the_global_model_and_away_from_the_last_one(three):
    own, received, previous, x, y = three
    before = [network.features(model, x) for model in (own, received, previous)]
    for _ in range(20):
        _, with_term = moon.loss_and_gradient(own, received, previous, x, y, 1.0, 0.5)
        _, without = network.loss_and_gradient(own, x, y)
        step = network.subtract(with_term, without)
        own = network.subtract(own, network.scale(0.2, step))
    z = network.features(own, x)
    near, far = (moon.cosines(z, other)[0].mean() for other in before[1:])
    assert near > moon.cosines(before[0], before[1])[0].mean() + 0.1
    assert far < moon.cosines(before[0], before[2])[0].mean() - 0.1
