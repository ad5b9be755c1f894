"""The hand-written gradient against finite differences, and the arithmetic on parameters."""

import numpy as np
import pytest

from tests.references import network, norm_network
from tests.references.small import differences


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    params = network.random_parameters(rng, inputs=4, hidden=3, classes=5)
    return params, rng.normal(size=(7, 4)), rng.integers(0, 5, 7)


@pytest.mark.parametrize("hidden", [3, {"b": 3, "a": 2, "c": 4}])
def test_gradient_equals_central_differences(problem, hidden):
    _, x, y = problem
    params = network.random_parameters(np.random.default_rng(1), 4, hidden, 5)
    _, gradient = network.loss_and_gradient(params, x, y)
    vector, step = network.flat(params), 1e-5
    numeric = np.zeros_like(vector)
    for k in range(len(vector)):
        up, down = vector.copy(), vector.copy()
        up[k] += step
        down[k] -= step
        above, _ = network.loss_and_gradient(network.unflat(up, params), x, y)
        below, _ = network.loss_and_gradient(network.unflat(down, params), x, y)
        numeric[k] = (above - below) / (2 * step)
    np.testing.assert_allclose(network.flat(gradient), numeric, rtol=1e-7, atol=1e-9)


def norm_model(rng):
    """Random parameters and statistics of the network with batch normalization."""
    normal = rng.normal
    return {
        "conv": {"kernel": normal(size=(3, 3, 2, 3)), "bias": normal(size=3)},
        "bn": {
            "scale": normal(size=3),
            "bias": normal(size=3),
            "mean": normal(size=3),
            "var": rng.uniform(1, 2, 3),
        },
        "head": {"kernel": normal(size=(12, 4)), "bias": normal(size=4)},
    }


def test_gradient_with_convolution_and_batch_norm_equals_central_differences():
    rng = np.random.default_rng(3)
    model, x, y = norm_model(rng), rng.normal(size=(5, 2, 2, 2)), rng.integers(0, 4, 5)
    _, gradient, _ = norm_network.training_loss(model, x, y)
    for layer, leaves in gradient.items():
        for name, slope in leaves.items():
            for at in np.ndindex(slope.shape):
                losses = []
                for shift in (1e-5, -1e-5):
                    moved = {key: dict(value) for key, value in model.items()}
                    moved[layer][name] = moved[layer][name].copy()
                    moved[layer][name][at] += shift
                    losses.append(norm_network.training_loss(moved, x, y)[0])
                numeric = (losses[0] - losses[1]) / 2e-5
                np.testing.assert_allclose(
                    slope[at], numeric, 1e-6, 1e-9, err_msg=f"{layer} {name}"
                )


@pytest.mark.parametrize("hidden", [3, {"b": 3, "a": 2, "c": 4}])
def test_hessian_vector_product_equals_central_differences_of_the_gradient(problem, hidden):
    _, x, y = problem
    rng = np.random.default_rng(6)
    params = network.random_parameters(rng, 4, hidden, 5)
    direction = network.mapped(lambda leaf: rng.normal(size=leaf.shape), params)

    def gradient(step):
        moved = network.add(params, network.scale(step, direction))
        return network.flat(network.loss_and_gradient(moved, x, y)[1])

    product = network.flat(network.hessian_vector_product(params, x, y, direction))
    numeric = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    np.testing.assert_allclose(product, numeric, rtol=1e-6, atol=1e-9)
    assert np.abs(product).max() > 1e-2


@pytest.mark.parametrize("hidden", [3, {"b": 3, "a": 2, "c": 4}])
def test_backward_of_a_loss_on_logits_and_features_equals_central_differences(problem, hidden):
    """Such as sum(U * logits) + sum(V * features), whose slopes are U and V."""
    _, x, _ = problem
    rng = np.random.default_rng(8)
    params = network.random_parameters(rng, 4, hidden, 5)
    slope = rng.normal(size=(len(x), 5))
    features = network.features(params, x)
    feature_slope = rng.normal(size=features.shape)
    head = params["head"]
    np.testing.assert_array_equal(
        network.logits(params, x), features @ head["kernel"] + head["bias"]
    )

    def loss(vector):
        model = network.unflat(vector, params)
        logits, seen = network.logits(model, x), network.features(model, x)
        return (slope * logits).sum() + (feature_slope * seen).sum()

    gradient = network.backward(params, x, slope, feature_slope)
    numeric = differences(loss, network.flat(params))
    np.testing.assert_allclose(network.flat(gradient), numeric, rtol=1e-7, atol=1e-9)
