"""FedALA's reference: element-wise weights, when they are learnt, and by whom."""

import numpy as np
import pytest

from tests.references import fedala, network
from tests.references.small import (
    CLASSES,
    differences,
    flat,
)

ALL = ("hidden", "head")


def part_of(model, top):
    return {layer: model[layer] for layer in top}


def random_pair():
    rng = np.random.default_rng(4)
    return [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(2)]


# ------------------------------------------------------------------ the weights


@pytest.mark.parametrize("top", [("head",), ALL])
def test_a_step_of_the_weights_follows_central_differences(setting, top):
    x, y, (own, received) = setting["x"], setting["y"], random_pair()
    rng = np.random.default_rng(2)
    first = network.mapped(lambda leaf: rng.uniform(0.4, 0.6, leaf.shape), part_of(received, top))

    def loss(vector):
        weights = network.unflat(vector, first)
        mixed = fedala.between(part_of(own, top), part_of(received, top), weights)
        return network.loss_and_gradient({**received, **mixed}, x, y)[0]

    slope = differences(loss, flat(first))
    adapted, weights, passes = fedala.adapt(
        own, received, first, [np.arange(len(y))], x, y,
        rate=0.1, first=False, threshold=0.1, window_size=10, most=9,
    )  # fmt: skip
    np.testing.assert_allclose(flat(weights), flat(first) - 0.1 * slope, atol=1e-9)
    assert passes == 1 and np.abs(slope).max() > 1e-3
    assert network.loss_and_gradient(adapted, x, y)[0] < loss(flat(first))
    for layer in adapted:
        mixed = own[layer]["bias"] + (received[layer]["bias"] - own[layer]["bias"]) * (
            weights[layer]["bias"] if layer in top else 1.0
        )
        np.testing.assert_allclose(adapted[layer]["bias"], mixed, rtol=1e-13)


def test_weights_are_clipped():
    def model(*values):
        return {"head": {"bias": np.array(values, float)}}

    weights = fedala.weight_step(
        model(0.5, 0.5, 0.5, 1.0), model(1, -1, 2, 3), model(0, 0, 0, 7), model(1, 1, 0, 7), 0.3
    )
    np.testing.assert_allclose(weights["head"]["bias"], [0.2, 0.8, 0.5, 1.0])
    weights = fedala.weight_step(model(0.5, 0.5), model(9, -9), model(0, 0), model(1, 1), 1.0)
    np.testing.assert_array_equal(weights["head"]["bias"], [0.0, 1.0])


def test_when_losses_have_settled():
    assert not fedala.converged([1.0] * 10, 0.1, 10)  # more than ten are needed
    assert fedala.converged([9.0] + [1.0] * 10, 0.1, 10)
    assert not fedala.converged([1.0] * 10 + [9.0], 0.1, 10)
    assert not fedala.converged([1.0] * 11, 0.0, 10)  # below, not at


def test_windows():
    samples = np.arange(20, 30)
    np.testing.assert_array_equal(fedala.window(samples, 80, 0), np.arange(20, 28))
    np.testing.assert_array_equal(fedala.window(samples, 79, 3), np.arange(23, 30))
    np.testing.assert_array_equal(fedala.window(samples[:1], 80, 0), [20])  # not 0 samples
    for start in (-1, 3):
        with pytest.raises(ValueError, match="can't start"):
            fedala.window(samples, 80, start)
