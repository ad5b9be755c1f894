"""APFL's reference: limits, both slopes by differences, cadences, and what public codes do."""

import numpy as np
import pytest

from tests.references import apfl, fedavg, local, network
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    assert_same,
    differences,
    flat,
    stack,
)


@pytest.fixture
def pair(setting):
    """(w, v, alpha, x, y): a shared and an own model, and one minibatch."""
    rng = np.random.default_rng(4)
    own = network.random_parameters(rng, 5, 6, 4)
    return setting["initial"], own, 0.3, setting["x"][9:13], setting["y"][9:13]


@pytest.mark.parametrize("form", apfl.FORMS)
@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_the_global_path_is_fedavg_and_the_weights_0_and_1_are_fedavg_and_local(
    setting, cohorts, form
):
    """Another tool's shared model moved by twice its gradient: both losses added up in it."""
    common = {**setting, "cohorts": cohorts}
    plain, alone = fedavg.run(**common), local.run(**common)
    for alpha in (0.0, 0.4, 1.0):
        history = apfl.run(**common, form=form, alpha=alpha, adapt="never")
        for models, expected, own in zip(history, plain, alone, strict=True):
            assert_same(models["global"], expected["global"])
            assert set(models["alpha"]) == {alpha}
            mixtures = models.get("personalized", models["own"])
            if alpha == 1.0:
                for one, other in zip(mixtures, own["personalized"], strict=True):
                    assert_same(one, other)
            if alpha == 0.0 and form == "parameters":
                assert (stack(mixtures) == flat(models["global"])).all()
            if alpha == 0.0:  # its own model has no part in any loss
                assert (stack(models["own"]) == flat(setting["initial"])).all()


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


@pytest.mark.parametrize("form", apfl.FORMS)
def test_round_by_hand(setting, form):
    """The second round of one client: alpha moves once, from the values before its first step."""
    common = {**setting, "cohorts": [[3], [3], []], "rounds": 2}
    first, second = apfl.run(**common, form=form)
    step = apfl.parameter_step if form == "parameters" else apfl.logits_step
    w, v, alpha = first["global"], first["own"][3], first["alpha"][3]
    for k, batch in enumerate(setting["batches"][1][3]):
        w, v, slope = step(w, v, alpha, setting["x"][batch], setting["y"][batch], RATES[1])
        if k == 0:
            alpha = min(max(alpha - RATES[1] * slope, 0.0), 1.0)
    assert_same(second["global"], w)
    assert_same(second["trained"][3], w)
    np.testing.assert_allclose(second["alpha"][3], alpha, rtol=1e-12)
    assert second["alpha"][3] != first["alpha"][3]
    # The own model is kept as it is: one tool overwrites it by the mixture after every round.
    assert_same(second["own"][3], v)
    overwritten = apfl.mixture(alpha, v, w)
    assert np.abs(flat(second["own"][3]) - flat(overwritten)).max() > 1e-3
    if form == "parameters":
        assert_same(second["personalized"][3], overwritten)


@pytest.mark.parametrize("form", apfl.FORMS)
def test_absent_clients_keep_their_model_and_weight(setting, form):
    own, alphas = [setting["initial"]] * COUNT, np.full(COUNT, 0.5)
    common = {**setting, "cohorts": [[0, 2], [1, 2, 3], []]}
    for t, models in enumerate(apfl.run(**common, form=form, adapt="every_step")):
        absent = [i for i in range(COUNT) if i not in common["cohorts"][t]]
        assert all(models["own"][i] is own[i] for i in absent)
        np.testing.assert_array_equal(models["alpha"][absent], alphas[absent])
        if form == "parameters":  # scored with the model that the server has now
            for i in range(COUNT):
                expected = apfl.mixture(models["alpha"][i], models["own"][i], models["global"])
                assert_same(models["personalized"][i], expected)
        own, alphas = models["own"], models["alpha"]
    assert models["trained"] == {}


def test_cadences(setting):
    """In the first step of all, v = w, so the paper's slope is zero there."""
    twice = [[own * 2 for own in of_round] for of_round in setting["batches"]]
    epoch = [len(own) for own in setting["batches"][0]]
    common = {**setting, "batches": twice, "epoch_steps": epoch}
    ran = {name: apfl.run(**common, adapt=name) for name in apfl.CADENCES}
    np.testing.assert_array_equal(ran["first_step"][0]["alpha"], 0.5)
    assert (ran["first_step"][1]["alpha"] != 0.5).all()
    last = {name: history[-1]["alpha"] for name, history in ran.items()}
    assert len({tuple(alphas) for alphas in last.values()}) == 4
    every = apfl.run(**{**common, "epoch_steps": [2 * n for n in epoch]}, adapt="first_epoch")
    np.testing.assert_array_equal(every[-1]["alpha"], last["every_step"])
    once = apfl.run(**{**common, "epoch_steps": [1] * COUNT}, adapt="first_epoch")
    np.testing.assert_array_equal(once[-1]["alpha"], last["first_step"])


def test_alpha_stays_in_the_unit_interval_and_names_are_checked(setting):
    fast = {**setting, "learning_rate": [8.0] * 3}
    alphas = np.array([models["alpha"] for models in apfl.run(**fast, adapt="every_step")])
    assert 0.0 <= alphas.min() <= alphas.max() <= 1.0
    assert {0.0, 1.0} & set(alphas.ravel())
    for wrong in ({"form": "mixture"}, {"adapt": "always"}, {"weighting": "sizes"}):
        with pytest.raises(ValueError, match="Unknown"):
            apfl.run(**setting, **wrong)
