"""References with local steps of their own: slopes by central differences and limits."""

import numpy as np
import pytest

from tests.references import apfl, apple, fedala, moon, network, perfedavg, pfedme
from tests.references.small import CLASSES, COUNT, ROUNDS, SIZES, differences, flat

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


def test_weights_of_the_mixture_stay_in_the_unit_interval(setting):
    fast = setting.but(learning_rate=[8.0] * ROUNDS)
    alphas = np.array([models["alpha"] for models in apfl.run(fast, adapt="every_step")])
    assert 0.0 <= alphas.min() <= alphas.max() <= 1.0
    assert {0.0, 1.0} <= set(alphas.ravel())


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


def test_a_strong_pull_leaves_the_personal_model_at_the_local_one(setting):
    """theta = w - grad f / lambda + O(1 / lambda^2); eta_p lambda = 1 is stable."""
    gaps = []
    for pull in (1e3, 1e4):
        (models,) = pfedme.run(
            setting.but(rounds=1, learning_rate=[0.1 / pull]),
            personal_rate=[1 / pull],
            proximal_weight=pull,
            decay=0.0,
        )
        pairs = [(models["personalized"][i], models["trained"][i]) for i in range(COUNT)]
        gaps.append(max(np.abs(flat(theta) - flat(w)).max() for theta, w in pairs))
    assert 0 < gaps[1] < 0.11 * gaps[0] < 1e-3


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


def steps_of(setting, count, seed=5):
    """batches[t][i]: steps of `count` minibatches of 2 samples, the last ones short or empty."""
    rng = np.random.default_rng(seed)

    def epoch(own):
        order, width = rng.permutation(own), 2 * count
        blocks = [order[k : k + width] for k in range(0, len(order), width)]
        return [[block[2 * m : 2 * m + 2] for m in range(count)] for block in blocks]

    samples = [client["samples"] for client in setting.clients]
    return [[epoch(own) for own in samples] for _ in range(ROUNDS)]


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


def test_differences_are_near_the_exact_product(setting):
    common = setting.but(batches=steps_of(setting, perfedavg.VARIANTS["hessian_free"]))

    def model(**options):
        return flat(perfedavg.run(common, variant="hessian_free", **options)[-1]["global"])

    exact, near = model(), model(product="differences")
    far = model(product="differences", delta=0.3)
    gaps = [np.abs(other - exact).max() for other in (near, far)]
    assert 0.0 < gaps[0] < 1e-6 < 1e-4 < gaps[1]


# ---- MOON


@pytest.fixture
def three(setting):
    """A model in training, a global and a previous one, and a minibatch."""
    rng = np.random.default_rng(4)
    models = [network.random_parameters(rng, 5, {"b": 4, "a": 6}, 4) for _ in range(3)]
    return *models, setting.x[9:16], setting.y[9:16]


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
