"""Per-FedAvg's reference: the meta-gradient by differences, limits, short batches, adaptation."""

import numpy as np
import pytest

from tests.references import fedavg, network, perfedavg, perfedavg_spfl
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    SIZES,
    assert_same,
    differences,
    flat,
    further_batches,
)

NOTHING = np.array([], int)


def steps_of(setting, count, seed=5):
    """batches[t][i]: steps of `count` minibatches of 2 samples, the last ones short or empty."""
    rng = np.random.default_rng(seed)

    def epoch(own):
        order, width = rng.permutation(own), 2 * count
        blocks = [order[k : k + width] for k in range(0, len(order), width)]
        return [[block[2 * m : 2 * m + 2] for m in range(count)] for block in blocks]

    samples = [client["samples"] for client in setting["clients"]]
    return [[epoch(own) for own in samples] for _ in range(ROUNDS)]


def with_steps(setting, variant="first_order", **changes):
    batches = steps_of(setting, perfedavg.VARIANTS[variant])
    return {**setting, "batches": batches, "variant": variant, **changes}


@pytest.mark.parametrize("product", perfedavg.PRODUCTS)
def test_meta_gradient_is_that_of_the_loss_after_a_step(setting, product):
    """With the third minibatch equal to the first, of F(w) = f_2(w - alpha grad f_1(w))."""
    x, y, like, alpha = setting["x"], setting["y"], setting["initial"], 0.8
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


@pytest.mark.parametrize("variant", perfedavg.VARIANTS)
@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_without_an_inner_step_it_is_fedavg_on_the_second_minibatches(setting, cohorts, variant):
    common = with_steps(setting, variant, cohorts=cohorts)
    betas = [0.3, 0.2, 0.1]
    second = [
        [[step[1] for step in own if len(step[1])] for own in of_round]
        for of_round in common["batches"]
    ]
    plain = {**setting, "cohorts": cohorts, "batches": second, "learning_rate": betas}
    history = perfedavg.run(**common, inner_rate=[0.0] * ROUNDS, outer_rate=betas)
    for models, expected in zip(history, fedavg.run(**plain), strict=True):
        assert_same(models["global"], expected["global"])


def test_where_the_hessian_does_not_matter_the_variants_agree(setting):
    """A third minibatch without samples has none, as a linear loss has none."""
    common = with_steps(setting)
    third = [
        [[[*step, NOTHING] for step in own] for own in of_round] for of_round in common["batches"]
    ]
    other = {**common, "batches": third, "variant": "hessian_free"}
    for models, expected in zip(perfedavg.run(**other), perfedavg.run(**common), strict=True):
        assert_same(models["global"], expected["global"])


def test_differences_are_near_the_exact_product(setting):
    common = with_steps(setting, "hessian_free")
    exact = perfedavg.run(**common)[-1]["global"]
    near = perfedavg.run(**common, product="differences")[-1]["global"]
    far = perfedavg.run(**common, product="differences", delta=0.3)[-1]["global"]
    gaps = [np.abs(flat(model) - flat(exact)).max() for model in (near, far)]
    assert 0.0 < gaps[0] < 1e-6 < 1e-4 < gaps[1]


@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("variant", perfedavg.VARIANTS)
def test_round_by_hand(setting, variant, weighting):
    common = with_steps(setting, variant, rounds=1, cohorts=[[1, 3]], weighting=weighting)
    alpha, beta = 0.6, 0.25
    (models,) = perfedavg.run(**common, inner_rate=[alpha], outer_rate=[beta])
    x, y, like = setting["x"], setting["y"], setting["initial"]

    def g(vector, batch):
        if not len(batch):
            return np.zeros_like(vector)
        model = network.unflat(vector, like)
        return flat(network.loss_and_gradient(model, x[batch], y[batch])[1])

    uploads = []
    for i in (1, 3):
        theta = flat(like)
        for step in common["batches"][0][i]:
            slope = g(theta - alpha * g(theta, step[0]), step[1])
            if variant == "hessian_free":
                ahead, behind = (g(theta + d * slope, step[2]) for d in (1e-5, -1e-5))
                slope = slope - alpha * (ahead - behind) / 2e-5
            theta = theta - beta * slope
        uploads.append(theta)
    weights = np.array([SIZES[1], SIZES[3]]) if weighting == "size" else np.ones(2)
    expected = weights / weights.sum() @ np.array(uploads)
    np.testing.assert_allclose(flat(models["global"]), expected, rtol=1e-8, atol=1e-10)


def test_a_client_that_fills_no_second_minibatch_does_not_move(setting):
    few = [[[[own[0][:2], NOTHING]] for own in of_round] for of_round in setting["batches"]]
    for models in perfedavg.run(**{**setting, "batches": few}):
        assert_same(models["global"], setting["initial"])


def test_adapted_models_take_one_step_from_the_global_model_and_are_discarded(setting):
    further = [[own[:1] for own in of_round] for of_round in further_batches(setting)]
    common = with_steps(setting, cohorts=PARTIAL)
    alphas = [0.6, 0.5, 0.4]
    plain = perfedavg.run(**common, inner_rate=alphas)
    adapted = perfedavg.run(**common, inner_rate=alphas, adapt_batches=further)
    for t, models in enumerate(adapted):
        np.testing.assert_array_equal(flat(models["global"]), flat(plain[t]["global"]))
        for i in range(COUNT):
            batch = further[t][i][0]
            _, g = network.loss_and_gradient(
                models["global"], setting["x"][batch], setting["y"][batch]
            )
            expected = flat(models["global"]) - alphas[t] * flat(g)
            np.testing.assert_allclose(flat(models["personalized"][i]), expected, rtol=1e-12)


def test_it_is_not_two_steps_on_the_same_minibatch(setting):
    """What SPFL's paper calls Per-FedAvg, even where both minibatches are the same."""
    batch = setting["clients"][3]["samples"]
    common = {**setting, "rounds": 1, "cohorts": [[3]]}
    (mine,) = perfedavg.run(**{**common, "batches": [[[[batch, batch]]] * COUNT]})
    (theirs,) = perfedavg_spfl.run(**{**common, "batches": [[[batch]] * COUNT]})
    gap = flat(mine["global"]) - flat(theirs["global"])
    _, g = network.loss_and_gradient(setting["initial"], setting["x"][batch], setting["y"][batch])
    np.testing.assert_allclose(gap, RATES[0] * flat(g), rtol=1e-10, atol=1e-15)


def test_nobody_changes_nothing_and_names_are_checked(setting):
    common = with_steps(setting, rounds=1, cohorts=[[]])
    assert perfedavg.run(**common)[0]["global"] is setting["initial"]
    with pytest.raises(ValueError, match="takes 3 minibatches"):
        perfedavg.run(**{**with_steps(setting), "variant": "hessian_free"})
    for wrong in ({"variant": "second_order"}, {"product": "none"}, {"weighting": "sizes"}):
        with pytest.raises(ValueError, match="Unknown"):
            perfedavg.run(**{**with_steps(setting), **wrong})
