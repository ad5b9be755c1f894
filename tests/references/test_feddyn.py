"""FedDyn's reference: invariants, the published code's form, a fixed point, absent clients."""

from itertools import pairwise

import numpy as np
import pytest

from tests.references import feddyn, network
from tests.references.local_sgd import sgd
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
    identical,
    longer,
    stack,
)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
@pytest.mark.parametrize("scaling", feddyn.SCALINGS)
def test_it_is_the_published_codes_form(setting, scaling, cohorts):
    """There d_i adds up the moves, and theta is the cohort's mean and the mean of all d_i."""
    alpha = 0.3
    history = feddyn.run(**{**setting, "cohorts": cohorts}, alpha=alpha, scaling=scaling)
    own = [alpha * np.mean(SIZES) / n if scaling == "size" else alpha for n in SIZES]
    theta, drift = flat(setting["initial"]), np.zeros((COUNT, len(flat(setting["initial"]))))
    last = np.tile(theta, (COUNT, 1))
    for t, models in enumerate(history):
        for i in cohorts[t]:
            y = theta.copy()
            for batch in setting["batches"][t][i]:
                model = network.unflat(y, setting["initial"])
                g = network.loss_and_gradient(model, setting["x"][batch], setting["y"][batch])[1]
                # As it is written there: linear in y, with alpha y as the optimizer's weight decay.
                y = y - RATES[t] * (flat(g) + own[i] * (drift[i] - theta) + own[i] * y)
            drift[i] += y - theta
            last[i] = y
        mean = last[cohorts[t]].mean(axis=0)
        theta = mean + drift.mean(axis=0)
        np.testing.assert_allclose(flat(models["global"]), theta, rtol=1e-10)
        np.testing.assert_allclose(flat(models["average"]), mean, rtol=1e-10)
        np.testing.assert_allclose(flat(models["everyone"]), last.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(stack(models["gradients"]), -np.array(own)[:, None] * drift)
        np.testing.assert_allclose(stack(models["trained"]), last, rtol=1e-10)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_h_is_the_mean_of_the_gradients_and_is_used(setting, cohorts):
    """Public codes have left h out, or divided by the cohort: theta is not the mean of uploads."""
    history = feddyn.run(**{**setting, "cohorts": cohorts}, alpha=0.1)
    for models in history:
        total = stack(models["gradients"]).sum(axis=0)
        np.testing.assert_allclose(total, COUNT * flat(models["h"]), rtol=1e-10, atol=1e-14)
        gap = flat(models["global"]) - flat(models["average"])
        np.testing.assert_allclose(gap, -flat(models["h"]) / 0.1, rtol=1e-8, atol=1e-13)
        assert np.abs(gap).max() > 1e-2
    sized = feddyn.run(**{**setting, "cohorts": cohorts}, alpha=0.1, scaling="size")[-1]
    weights = np.array(SIZES) / np.mean(SIZES)
    total = weights @ stack(sized["gradients"])
    np.testing.assert_allclose(total, COUNT * flat(sized["h"]), rtol=1e-10, atol=1e-14)


def test_local_steps_descend_the_regularised_loss(setting):
    """Its slope by differences; a code with the norm for its square pulls alike at any distance."""
    batches = [[[]] * COUNT, [[]] * COUNT]
    batch = batches[0][2] = batches[1][2] = [setting["clients"][2]["samples"]] * 2
    common = {**setting, "rounds": 2, "cohorts": [[2], [2]], "batches": batches}
    alpha, (x, y) = 0.4, (setting["x"][batch[0]], setting["y"][batch[0]])
    first, second = feddyn.run(**common, alpha=alpha)
    theta, g = flat(first["global"]), flat(first["gradients"][2])
    assert np.abs(g).max() > 1e-3

    def objective(vector):
        loss, _ = network.loss_and_gradient(network.unflat(vector, setting["initial"]), x, y)
        away = vector - theta
        return loss - g @ vector + alpha / 2 * away @ away

    vector = theta
    for _ in range(2):
        vector = vector - RATES[1] * differences(objective, vector)
    np.testing.assert_allclose(flat(second["trained"][2]), vector, rtol=1e-7, atol=1e-9)
    expected = g - alpha * (vector - theta)
    np.testing.assert_allclose(flat(second["gradients"][2]), expected, rtol=1e-6, atol=1e-9)


def test_after_exact_local_minima_g_is_the_gradient_there(setting):
    own, x, y = [client["samples"] for client in setting["clients"]], setting["x"], setting["y"]
    common = {**setting, "batches": [[[samples] * 150 for samples in own]] * ROUNDS}
    for models in feddyn.run(**{**common, "learning_rate": [0.25] * ROUNDS}, alpha=2.0):
        for i in range(COUNT):
            _, g = network.loss_and_gradient(models["trained"][i], x[own[i]], y[own[i]])
            np.testing.assert_allclose(flat(models["gradients"][i]), flat(g), atol=1e-7)


def test_where_g_is_the_gradient_at_theta_a_client_stays(setting):
    """The fixed points: no client moves there, and h = 0 where the sum of gradients is 0."""
    samples, x, y = setting["clients"][3]["samples"], setting["x"], setting["y"]
    _, g = network.loss_and_gradient(setting["initial"], x[samples], y[samples])
    trained, after = feddyn.train_client(setting["initial"], g, 0.3, [samples] * 3, x, y, 0.5)
    assert_same(trained, setting["initial"])
    assert_same(after, g)


def test_identical_clients_go_together(setting):
    """Every y_i is the mean; theta goes ahead of it by the sum of all moves."""
    same = identical(setting)
    received, total = setting["initial"], 0.0
    for t, models in enumerate(feddyn.run(**same, alpha=0.2)):

        def regulariser(params, received=received, total=total):
            slope = 0.2 * (flat(params) - flat(received) + total)
            return network.unflat(slope, params)

        own = same["batches"][t][0]
        y = sgd(received, own, setting["x"], setting["y"], RATES[t], regulariser)
        total = total + flat(y) - flat(received)
        for i in range(COUNT):
            assert_same(models["trained"][i], y, rtol=1e-10)
        np.testing.assert_allclose(flat(models["global"]), flat(y) + total, rtol=1e-10, atol=1e-13)
        received = models["global"]


def test_absent_clients_keep_their_gradient_and_rounds_without_any_change_nothing(setting):
    common = longer({**setting, "cohorts": [[0, 2], [], [1, 2, 3]]}, 4)
    first, empty, third, last = history = feddyn.run(**common)
    for t, (before, after) in enumerate(pairwise(history)):
        for i in set(range(COUNT)) - set(common["cohorts"][t + 1]):
            assert after["gradients"][i] is before["gradients"][i]
    assert all(empty[name] is first[name] for name in ("global", "average", "h"))
    assert third["gradients"][0] is not last["gradients"][0]
    (nobody,) = feddyn.run(**{**setting, "rounds": 1, "cohorts": [[]]})
    assert nobody["global"] is nobody["average"] is setting["initial"]
    assert_same(nobody["everyone"], setting["initial"])


def test_settings_are_checked(setting):
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="alpha must be above 0"):
            feddyn.run(**setting, alpha=alpha)
    with pytest.raises(ValueError, match="Unknown scaling"):
        feddyn.run(**setting, scaling="sizes")
    np.testing.assert_array_equal(feddyn.strengths(0.1, [4] * ROUNDS, "size"), 0.1)
