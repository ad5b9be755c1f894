"""Ditto's reference: its two limits, a round by hand, the author's batches, absent clients."""

import numpy as np
import pytest

from tests.references import ditto, fedavg, local, network
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    SIZES,
    assert_same,
    flat,
    further_batches,
)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_the_global_path_is_fedavg_and_without_a_pull_the_personal_one_is_local(setting, cohorts):
    common, further = {**setting, "cohorts": cohorts}, further_batches(setting)
    for pull in (0.0, 0.7):
        history = ditto.run(**common, personal_batches=further, pull=pull)
        for models, expected in zip(history, fedavg.run(**common), strict=True):
            assert_same(models["global"], expected["global"])
    history = ditto.run(**common, personal_batches=further, pull=0.0)
    alone = local.run(**{**common, "batches": further})
    for models, expected in zip(history, alone, strict=True):
        for one, other in zip(models["personalized"], expected["personalized"], strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_the_pull_goes_to_the_received_model_and_absent_clients_wait(setting, cohorts):
    """By hand. Tools have been seen to pull towards the model that training has changed."""
    further, x, y, pull = further_batches(setting), setting["x"], setting["y"], 0.7
    common = {**setting, "cohorts": cohorts}
    received, before = setting["initial"], [setting["initial"]] * COUNT
    rates = [0.3, 0.2, 0.1]
    for t, models in enumerate(
        ditto.run(**common, personal_batches=further, pull=pull, personal_rate=rates)
    ):
        for i in range(COUNT):
            if i not in cohorts[t]:
                assert models["personalized"][i] is before[i]
                continue
            theta = flat(before[i])
            for batch in further[t][i]:
                model = network.unflat(theta, received)
                g = flat(network.loss_and_gradient(model, x[batch], y[batch])[1])
                theta = theta - rates[t] * (g + pull * (theta - flat(received)))
            np.testing.assert_allclose(flat(models["personalized"][i]), theta, rtol=1e-11)
        received, before = models["global"], models["personalized"]


def test_at_a_stationary_point_a_pull_of_one_step_reaches_the_global_model(setting):
    """All weights zero, one sample of each class: no gradient, so v - eta lambda (v - w) = w."""
    still = network.zeros_like(setting["initial"])
    x = np.random.default_rng(0).normal(size=(4, 5))
    batch = [np.arange(4)]
    _, gradient = network.loss_and_gradient(still, x, np.arange(4))
    np.testing.assert_allclose(flat(gradient), 0.0, atol=1e-17)
    own = ditto.personal_training(still, setting["initial"], batch, x, np.arange(4), 0.25, 4.0)
    np.testing.assert_allclose(flat(own), flat(setting["initial"]), rtol=1e-14, atol=1e-16)


def test_the_author_serves_both_models_with_one_minibatch_in_any_order(setting):
    """v first, then w, at every step, as the published loop has it; uniform mean of the changes."""
    history = ditto.run(**setting, personal_batches=setting["batches"], weighting="uniform")
    x, y = setting["x"], setting["y"]
    shared, own = flat(setting["initial"]), [flat(setting["initial"])] * COUNT
    for t, models in enumerate(history):
        changes = []
        for i in range(COUNT):
            w = shared.copy()
            for batch in setting["batches"][t][i]:
                for name in ("own", "shared"):
                    theta = own[i] if name == "own" else w
                    model = network.unflat(theta, setting["initial"])
                    g = flat(network.loss_and_gradient(model, x[batch], y[batch])[1])
                    if name == "own":
                        own[i] = theta - RATES[t] * (g + 1.0 * (theta - shared))
                    else:
                        w = theta - RATES[t] * g
            changes.append(w - shared)
        shared = shared + np.mean(changes, axis=0)
        np.testing.assert_allclose(flat(models["global"]), shared, rtol=1e-11)
        for i in range(COUNT):
            np.testing.assert_allclose(flat(models["personalized"][i]), own[i], rtol=1e-11)
    by_size = ditto.run(**setting, personal_batches=setting["batches"])
    assert len(set(SIZES)) > 1
    assert np.abs(flat(by_size[0]["global"]) - flat(history[0]["global"])).max() > 1e-3


def test_nobody_changes_nothing(setting):
    (models,) = ditto.run(
        **{**setting, "rounds": 1, "cohorts": [[]]}, personal_batches=setting["batches"]
    )
    assert models["global"] is setting["initial"]
    assert all(model is setting["initial"] for model in models["personalized"])
