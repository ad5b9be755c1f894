"""MOON's reference: the contrast and its slopes, FedAvg as limit, what stands for a last model."""

import numpy as np
import pytest

from tests.references import fedavg, moon, network, projected_network
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    assert_same,
    differences,
    flat,
    longer,
)


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


def test_slopes_of_cosines_and_contrast_equal_central_differences():
    rng = np.random.default_rng(1)
    z, near, far = rng.normal(size=(3, 5, 4))
    _, slope = moon.cosines(z, near)
    numeric = differences(lambda v: moon.cosines(v.reshape(z.shape), near)[0].sum(), z.ravel())
    np.testing.assert_allclose(slope.ravel(), numeric, rtol=1e-7, atol=1e-10)
    _, slope = moon.contrast(z, near, far, 0.3)
    numeric = differences(lambda v: moon.contrast(v.reshape(z.shape), near, far, 0.3)[0], z.ravel())
    np.testing.assert_allclose(slope.ravel(), numeric, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose((slope * z).sum(axis=1), 0.0, atol=1e-16)  # lengths don't matter


def test_gradient_of_the_whole_loss_equals_central_differences(three):
    own, received, previous, x, y = three

    def loss(vector):
        model = network.unflat(vector, own)
        return moon.loss_and_gradient(model, received, previous, x, y, 1.5, 0.5)[0]

    _, gradient = moon.loss_and_gradient(own, received, previous, x, y, 1.5, 0.5)
    np.testing.assert_allclose(flat(gradient), differences(loss, flat(own)), rtol=1e-6, atol=1e-9)
    _, plain = network.loss_and_gradient(own, x, y)
    for name in ("kernel", "bias"):  # features do not depend on the head
        np.testing.assert_array_equal(gradient["head"][name], plain["head"][name])
    assert np.abs(gradient["a"]["kernel"] - plain["a"]["kernel"]).max() > 1e-3


def test_gradient_with_a_projection_equals_central_differences(setting):
    rng = np.random.default_rng(5)
    widths = {"hidden": (5, 6), "first": (6, 6), "second": (6, 3), "head": (3, 4)}
    own, received, previous = (
        {
            name: {"kernel": rng.normal(size=shape), "bias": rng.normal(size=shape[1])}
            for name, shape in widths.items()
        }
        for _ in range(3)
    )
    others = received, previous, setting["x"][9:16], setting["y"][9:16], 1.5, 0.5

    def value(model):
        return moon.loss_and_gradient(model, *others, projected_network)

    gradient = flat(value(own)[1])
    numeric = differences(lambda vector: value(network.unflat(vector, own))[0], flat(own))
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_without_the_term_it_is_fedavg(setting, cohorts):
    common = {**setting, "cohorts": cohorts}
    for models, expected in zip(moon.run(**common, mu=0.0), fedavg.run(**common), strict=True):
        assert_same(models["global"], expected["global"])


def test_a_clients_first_round_has_no_term_whenever_it_comes(setting):
    common = {**setting, "cohorts": [[0, 1], [2, 3], [1, 2]]}
    first, second, third = moon.run(**common, mu=5.0)
    assert first["previous"][2] is first["previous"][3] is None
    plain = fedavg.run(**common)
    assert_same(first["global"], plain[0]["global"])
    assert_same(second["global"], plain[1]["global"])
    assert np.abs(flat(third["global"]) - flat(plain[2]["global"])).max() > 1e-3


def test_the_last_trained_model_is_kept_and_absent_clients_keep_theirs(setting):
    """By hand: neither the aggregated model nor the one before training is what z_p comes from."""
    common = longer({**setting, "cohorts": PARTIAL}, 4)
    received, previous = setting["initial"], [None] * COUNT
    for t, models in enumerate(moon.run(**common, mu=2.0, tau=0.3)):
        for i in range(COUNT):
            if i not in common["cohorts"][t]:
                assert models["previous"][i] is previous[i]
                continue
            theta = received
            last = previous[i] or received
            for batch in common["batches"][t][i]:
                x, y = setting["x"][batch], setting["y"][batch]
                _, g = moon.loss_and_gradient(theta, received, last, x, y, 2.0, 0.3)
                rate = common["learning_rate"][t]
                theta = network.unflat(flat(theta) - rate * flat(g), theta)
            assert_same(models["previous"][i], theta)
        received, previous = models["global"], models["previous"]
    assert RATES[0] == common["learning_rate"][3]
    (nobody,) = moon.run(**{**setting, "rounds": 1, "cohorts": [[]]})
    assert nobody["global"] is setting["initial"] and nobody["previous"] == [None] * COUNT


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
