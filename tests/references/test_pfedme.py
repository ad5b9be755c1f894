"""pFedMe's reference: limits, a round by hand, and that personal models are models of their own."""

import numpy as np
import pytest

from tests.references import network, pfedme
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
    stack,
)

PERSONAL = [0.05] * ROUNDS


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
@pytest.mark.parametrize("still", [{"pull": 0.0}, {"server_rate": 0.0}])
def test_without_a_pull_or_a_server_rate_the_global_model_stays(setting, cohorts, still):
    common = {**setting, "cohorts": cohorts, "personal_rate": PERSONAL}
    for models in pfedme.run(**common, **{"pull": 2.0, **still}):
        assert_same(models["global"], setting["initial"])


def test_a_strong_pull_leaves_the_personal_model_at_the_local_one(setting):
    """theta = w - grad f / lambda + O(1 / lambda^2); eta_p lambda = 1 is stable."""
    gaps = []
    for pull in (1e3, 1e4):
        (models,) = pfedme.run(
            **{**setting, "rounds": 1, "learning_rate": [0.1 / pull]},
            personal_rate=[1 / pull],
            pull=pull,
            decay=0.0,
        )
        pairs = [(models["personalized"][i], models["trained"][i]) for i in range(COUNT)]
        gaps.append(max(np.abs(flat(theta) - flat(w)).max() for theta, w in pairs))
    assert 0 < gaps[1] < 0.11 * gaps[0] < 1e-3


def test_many_inner_steps_find_the_minimum_of_the_envelope(setting):
    x, y, start = setting["x"][:9], setting["y"][:9], setting["initial"]
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


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_two_rounds_by_hand(setting, weighting):
    """theta begins a round at w and goes on from minibatch to minibatch; w_i follows each."""
    options = {"pull": 4.0, "inner_steps": 2, "server_rate": 0.7, "weighting": weighting}
    options["who"] = "drawn"
    common = {**setting, "rounds": 2, "cohorts": [[1, 3], [3]], "personal_rate": [0.05, 0.04]}
    history = pfedme.run(**common, **options)
    shared, personal = flat(setting["initial"]), [flat(setting["initial"])] * COUNT
    for t, models in enumerate(history):
        uploads = []
        for i in common["cohorts"][t]:
            w = theta = shared
            for batch in setting["batches"][t][i]:
                for _ in range(2):
                    model = network.unflat(theta, setting["initial"])
                    g = network.loss_and_gradient(model, setting["x"][batch], setting["y"][batch])
                    slope = flat(g[1]) + 4.0 * (theta - w) + 1e-3 * theta
                    theta = theta - common["personal_rate"][t] * slope
                w = w - RATES[t] * 4.0 * (w - theta)
            uploads.append(w)
            personal[i] = theta
            np.testing.assert_allclose(flat(models["trained"][i]), w, rtol=1e-11)
        sizes = np.array([SIZES[i] if weighting == "size" else 1 for i in common["cohorts"][t]])
        shared = 0.3 * shared + 0.7 * (sizes / sizes.sum() @ np.array(uploads))
        np.testing.assert_allclose(flat(models["global"]), shared, rtol=1e-11)
        np.testing.assert_allclose(stack(models["personalized"]), personal, rtol=1e-11)


def test_personal_models_are_not_aliases_and_those_of_absent_clients_stay(setting):
    """Public codes score w_i, the broadcast w, or for ever the initial model in theta_i's place."""
    before = [setting["initial"]] * COUNT
    common = {**setting, "cohorts": PARTIAL, "personal_rate": PERSONAL}
    for t, models in enumerate(pfedme.run(**common, who="drawn")):
        for i in range(COUNT):
            theta = models["personalized"][i]
            if i not in PARTIAL[t]:
                assert theta is before[i]
                continue
            for other in (models["global"], models["trained"][i], setting["initial"], before[i]):
                assert np.abs(flat(theta) - flat(other)).max() > 1e-5
        assert set(models["trained"]) == set(PARTIAL[t])
        before = models["personalized"]


def test_all_train_while_the_cohort_is_averaged(setting):
    """Algorithm 1 and the published code. The global model does not depend on who else trains."""
    common = {**setting, "cohorts": PARTIAL, "personal_rate": PERSONAL}
    drawn, everyone = pfedme.run(**common, who="drawn"), pfedme.run(**common)
    for t, (models, expected) in enumerate(zip(everyone, drawn, strict=True)):
        assert_same(models["global"], expected["global"])
        assert set(models["trained"]) == set(range(COUNT))
        for i in PARTIAL[t]:
            assert_same(models["personalized"][i], expected["personalized"][i])
    alone = {**setting, "cohorts": [[]] * ROUNDS, "personal_rate": PERSONAL}
    assert pfedme.run(**alone)[-1]["global"] is setting["initial"]
    with pytest.raises(ValueError, match="Unknown"):
        pfedme.run(**common, who="all")
