"""References with local steps of their own: slopes by central differences and limits."""

import numpy as np
import pytest

from tests.references import apfl, apple, fedala, moon, network, perfedavg, pfedme
from tests.references.small import CLASSES, COUNT, SIZES, differences, flat

# ---- APFL


@pytest.fixture
def pair(setting):
    """(w, v, alpha, x, y): a shared and an own model, and one minibatch."""
    rng = np.random.default_rng(4)
    own = network.random_parameters(rng, 5, 6, 4)
    return setting.initial, own, 0.3, setting.x[9:13], setting.y[9:13]


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


# ---- APPLE


FIRST = np.array(SIZES) / sum(SIZES)


@pytest.fixture
def several(setting):
    """The setting with a core of its own for each client."""
    rng = np.random.default_rng(5)
    cores = [network.random_parameters(rng, 5, 6, 4) for _ in range(COUNT)]
    return setting.but(initial=cores)


def test_penalty_falls_over_the_first_rounds():
    factor = [apple.penalty_factor(t, 40) for t in range(6)]
    np.testing.assert_allclose(factor, [1, 1e-3**0.25, 1e-3**0.5, 1e-3**0.75, 0, 0], rtol=1e-14)
    cosine = [apple.penalty_factor(t, 40, 0.1, "cosine") for t in range(6)]
    np.testing.assert_allclose(
        cosine, [1, 0.5 + np.sqrt(0.125), 0.5, 0.5 - np.sqrt(0.125), 0, 0], atol=1e-15
    )
    assert apple.penalty_factor(0, 9) == 0.0  # a tenth of 9 rounds is none
    assert apple.penalty_factor(2, 30) > 0.0 == apple.penalty_factor(3, 30)
    assert apple.penalty_factor(28, 100, 0.29) > 0.0 == apple.penalty_factor(29, 100, 0.29)


def test_gradients_are_those_of_the_objective(several, setting):
    cores, i, penalty = several.initial, 2, 0.7
    relations = np.array([0.4, -0.2, 0.9, 0.1])
    at = setting.clients[i]["samples"]
    x, y = setting.x[at], setting.y[at]

    def objective(core, q):
        mixed = [core if j == i else other for j, other in enumerate(cores)]
        loss, _ = network.loss_and_gradient(network.combine(q, mixed), x, y)
        return loss + penalty / 2 * np.sum((q - FIRST) ** 2)

    slope, slopes = apple.gradients(i, cores, relations, FIRST, penalty, x, y)
    by_core = differences(
        lambda v: objective(network.unflat(v, cores[i]), relations), flat(cores[i])
    )
    np.testing.assert_allclose(flat(slope), by_core, rtol=1e-6, atol=1e-9)
    by_relation = differences(lambda q: objective(cores[i], q), relations)
    np.testing.assert_allclose(slopes, by_relation, rtol=1e-6, atol=1e-9)


# ---- pFedMe


def test_many_inner_steps_find_the_minimum_of_the_envelope(setting):
    x, y, start = setting.x[:9], setting.y[:9], setting.initial
    theta = pfedme.nearby(start, start, x, y, 0.2, 400, 3.0, 0.01)

    def objective(vector):
        loss, _ = network.loss_and_gradient(network.unflat(vector, start), x, y)
        away = vector - flat(start)
        return loss + 1.5 * away @ away + 0.005 * vector @ vector

    np.testing.assert_allclose(differences(objective, flat(theta)), 0.0, atol=1e-9)
    # There lambda (w - theta) is the slope of the envelope: what w_i descends is grad f(theta).
    _, g = network.loss_and_gradient(theta, x, y)
    slope = 3.0 * (flat(start) - flat(theta))
    np.testing.assert_allclose(slope, flat(g) + 0.01 * flat(theta), atol=1e-9)


# ---- Per-FedAvg


@pytest.mark.parametrize("product", perfedavg.PRODUCTS)
def test_meta_gradient_is_that_of_the_loss_after_a_step(setting, product):
    """With the third minibatch equal to the first, of F(w) = f_2(w - alpha grad f_1(w))."""
    x, y, like, alpha = setting.x, setting.y, setting.initial, 0.8
    first, second = np.arange(9, 13), np.arange(13, 19)

    def after_a_step(vector):
        model = network.unflat(vector, like)
        _, g = network.loss_and_gradient(model, x[first], y[first])
        model = network.subtract(model, network.scale(alpha, g))
        return network.loss_and_gradient(model, x[second], y[second])[0]

    numeric = differences(after_a_step, flat(like))
    whole = perfedavg.meta_gradient(like, [first, second, first], x, y, alpha, product)
    np.testing.assert_allclose(flat(whole), numeric, rtol=1e-5, atol=1e-8)
    simple = perfedavg.meta_gradient(like, [first, second], x, y, alpha)
    assert np.abs(flat(simple) - numeric).max() > 1e-3


# ---- MOON


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


# ---- FedALA


ALL = ("hidden", "head")


def part_of(model, top):
    return {layer: model[layer] for layer in top}


def random_pair():
    rng = np.random.default_rng(4)
    return [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(2)]


@pytest.mark.parametrize("top", [("head",), ALL])
def test_a_step_of_the_weights_follows_central_differences(setting, top):
    x, y, (own, received) = setting.x, setting.y, random_pair()
    rng = np.random.default_rng(2)
    first = network.mapped(lambda leaf: rng.uniform(0.4, 0.6, leaf.shape), part_of(received, top))

    def loss(vector):
        weights = network.unflat(vector, first)
        mixed = fedala.between(part_of(own, top), part_of(received, top), weights)
        return network.loss_and_gradient({**received, **mixed}, x, y)[0]

    slope = differences(loss, flat(first))
    adapted, weights, passes = fedala.adapt(
        own, received, first, [np.arange(len(y))], x, y,
        rate=0.1, first=False, threshold=0.1, most=9,
    )  # fmt: skip
    np.testing.assert_allclose(flat(weights), flat(first) - 0.1 * slope, atol=1e-9)
    assert passes == 1 and np.abs(slope).max() > 1e-3
    assert network.loss_and_gradient(adapted, x, y)[0] < loss(flat(first))
    for layer in adapted:
        mixed = own[layer]["bias"] + (received[layer]["bias"] - own[layer]["bias"]) * (
            weights[layer]["bias"] if layer in top else 1.0
        )
        np.testing.assert_allclose(adapted[layer]["bias"], mixed, rtol=1e-13)
