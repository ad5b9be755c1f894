"""The hand-written gradient against finite differences, and the arithmetic on parameters."""

import numpy as np
import pytest

from tests.references import averaging, network, norm_network
from tests.references.local_sgd import sgd
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


def test_cross_entropy_without_a_class_is_that_of_the_others():
    rng = np.random.default_rng(3)
    scores, y = rng.normal(size=(6, 4)), np.array([0, 1, 3, 3, 0, 1])
    without = scores.copy()
    without[:, 2] = -np.inf
    loss, slope = network.cross_entropy(without, y)
    fewer, slope_of_fewer = network.cross_entropy(scores[:, [0, 1, 3]], np.where(y == 3, 2, y))
    assert loss == fewer and not slope[:, 2].any()
    np.testing.assert_array_equal(slope[:, [0, 1, 3]], slope_of_fewer)


def test_sgd_moves_the_layers_that_it_is_told(problem):
    params, x, y = problem
    batches = [np.array([0, 3]), np.array([1, 2, 5])]
    for layer, other in (("hidden", "head"), ("head", "hidden")):
        model = sgd(params, batches, x, y, 0.3, layers=[layer])
        theta = params
        for batch in batches:
            gradient = network.loss_and_gradient(theta, x[batch], y[batch])[1][layer]
            moved = {name: theta[layer][name] - 0.3 * gradient[name] for name in gradient}
            theta = {**theta, layer: moved}
        np.testing.assert_array_equal(network.flat(model), network.flat(theta))
        assert model[other] is params[other]


def test_loss_is_the_mean_over_samples_and_survives_large_scores(problem):
    params, x, y = problem
    loss, _ = network.loss_and_gradient(params, x, y)
    each = [network.loss_and_gradient(params, x[[k]], y[[k]])[0] for k in range(len(y))]
    np.testing.assert_allclose(loss, np.mean(each), rtol=1e-13)
    loss, gradient = network.loss_and_gradient(network.scale(1e4, params), x, y)
    assert np.isfinite(loss) and np.isfinite(network.flat(gradient)).all()


def test_layers_are_applied_in_the_order_of_their_names_and_the_head_last(problem):
    _, x, _ = problem
    params = network.random_parameters(np.random.default_rng(1), 4, {"z": 3, "a": 2}, 5)
    assert params["a"]["kernel"].shape == (4, 2) and params["z"]["kernel"].shape == (2, 3)
    inner = x
    for name in ("a", "z"):
        inner = np.tanh(inner @ params[name]["kernel"] + params[name]["bias"])
    expected = inner @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_array_equal(network.logits(params, x), expected)


def test_arithmetic(problem):
    params, x, _ = problem
    vector = network.flat(params)
    np.testing.assert_array_equal(network.flat(network.unflat(vector, params)), vector)
    total = network.combine([0.25, 0.5], [params, network.scale(2.0, params)])
    np.testing.assert_allclose(network.flat(total), 1.25 * vector, rtol=1e-14)
    np.testing.assert_allclose(network.squared_distance(total, params), vector @ vector / 16)
    np.testing.assert_array_equal(network.flat(network.add(params, params)), 2 * vector)
    np.testing.assert_array_equal(
        network.predict(params, x), network.logits(params, x).argmax(axis=1)
    )


def test_sgd_steps_in_order_and_adds_the_extra_gradient(problem):
    params, x, y = problem
    before = network.flat(params).copy()
    first, second = np.array([0, 3]), np.array([1, 2, 5])
    by_hand = network.flat(params)
    for batch in (first, second):
        _, gradient = network.loss_and_gradient(network.unflat(by_hand, params), x[batch], y[batch])
        by_hand = by_hand - 0.3 * (network.flat(gradient) + 0.1 * (by_hand - before))

    def pull(theta):
        return network.scale(0.1, network.subtract(theta, params))

    trained = sgd(params, [first, second], x, y, 0.3, extra_gradient=pull)
    np.testing.assert_allclose(network.flat(trained), by_hand, rtol=1e-13)
    np.testing.assert_array_equal(network.flat(params), before)
    assert sgd(params, [], x, y, 0.3) is params
    with pytest.raises(ValueError, match="without samples"):
        sgd(params, [np.array([], int)], x, y, 0.3)


def norm_model(rng):
    """Random parameters and statistics of the network with batch normalisation."""
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


def test_statistics_move_and_evaluation_uses_them():
    rng = np.random.default_rng(4)
    model, x, y = norm_model(rng), rng.normal(size=(5, 2, 2, 2)), rng.integers(0, 4, 5)
    model["bn"] |= {"mean": np.zeros(3), "var": np.ones(3)}
    sums = norm_network.convolution(x, **model["conv"]).reshape(-1, 3)
    statistics = norm_network.training_loss(model, x, y)[2]
    np.testing.assert_allclose(statistics["mean"], 0.1 * sums.mean(axis=0))
    np.testing.assert_allclose(statistics["var"], 0.9 + 0.1 * sums.var(axis=0, ddof=1))
    model["bn"] |= {"mean": sums.mean(axis=0), "var": sums.var(axis=0)}
    trained, _ = norm_network.cross_entropy(norm_network.logits(model, x), y)
    np.testing.assert_allclose(trained, norm_network.training_loss(model, x, y)[0])
    single = norm_network.training_loss(
        {**model, "head": {"kernel": np.ones((3, 4)), "bias": np.zeros(4)}}, x[:1, :1, :1], y[:1]
    )[2]
    np.testing.assert_array_equal(single["var"], model["bn"]["var"])


def test_momentum_and_decay_by_hand():
    rng = np.random.default_rng(5)
    model, x, y = norm_model(rng), rng.normal(size=(5, 2, 2, 2)), rng.integers(0, 4, 5)
    batches = [np.array([0, 1]), np.array([2, 3, 4])]
    trained = norm_network.sgd(0.5, 0.1)(model, batches, x, y, 0.2)
    kernel, velocity, now = model["head"]["kernel"], 0, model
    for k, batch in enumerate(batches):
        gradient = norm_network.training_loss(now, x[batch], y[batch])[1]["head"]["kernel"]
        velocity = 0.5 * velocity + gradient + 0.1 * kernel
        kernel = kernel - 0.2 * velocity
        now = norm_network.sgd(0.5, 0.1)(model, batches[: k + 1], x, y, 0.2)
        np.testing.assert_allclose(now["head"]["kernel"], kernel)
    np.testing.assert_array_equal(trained["head"]["kernel"], now["head"]["kernel"])


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


def test_hessian_is_symmetric_and_the_product_linear(problem):
    params, x, y = problem
    rng = np.random.default_rng(7)
    a, b = (network.mapped(lambda leaf: rng.normal(size=leaf.shape), params) for _ in range(2))

    def product(direction):
        return network.hessian_vector_product(params, x, y, direction)

    np.testing.assert_allclose(network.dot(a, product(b)), network.dot(b, product(a)), rtol=1e-11)
    both = network.add(a, network.scale(-3.0, b))
    parts = network.add(product(a), network.scale(-3.0, product(b)))
    np.testing.assert_allclose(network.flat(product(both)), network.flat(parts), atol=1e-14)
    assert not network.flat(product(network.zeros_like(params))).any()


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


def test_shares_of_a_cohort():
    assert averaging.shares((9, 4, 6, 11), [1, 2]) == [0.4, 0.6]
    assert averaging.shares((9, 4, 6, 11), [1, 2, 3, 0], "uniform") == [0.25] * 4
    with pytest.raises(ValueError, match="Unknown weighting"):
        averaging.shares((9, 4), [0], "sizes")
