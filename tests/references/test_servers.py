"""References whose server keeps momentum, second moments, controls or late uploads."""

import numpy as np
import pytest

from tests.references import (
    fedasync,
    fedavgm,
    feddyn,
    fedopt,
    network,
    perfedavg_async,
    scaffold,
    weight_erosion,
)
from tests.references.setting import Setting
from tests.references.small import COUNT, EVERYBODY, PARTIAL, RATES, SIZES, assert_same, flat, stack

# ---- FedAvgM


def test_the_reference_of_a_constant_step_is_a_geometric_series(setting, monkeypatch):
    one = lambda _, model, *at: network.mapped(lambda w: w - 1, model)  # noqa: E731
    monkeypatch.setattr(Setting, "train", one)
    history = fedavgm.run(setting, server_momentum=0.5, nesterov=False)
    for models, speed in zip(history, (1, 1.5, 1.75), strict=True):
        np.testing.assert_allclose(flat(models["velocity"]), speed, rtol=1e-12)
    away = flat(setting.initial) - flat(history[-1]["global"])
    np.testing.assert_allclose(away, 1 + 1.5 + 1.75, rtol=1e-12)


# ---- FedOpt


def test_without_memory_and_tau_adam_steps_by_signs(setting):
    options = {"rule": "adam", "server_rate": 0.02, "b1": 0.0, "b2": 0.0, "tau": 0.0}
    before = flat(setting.initial)
    for models in fedopt.run(setting, **options):
        step = flat(models["global"]) - before
        np.testing.assert_allclose(step, 0.02 * np.sign(flat(models["first"])), rtol=1e-9)
        before = flat(models["global"])


def test_yogi_changes_its_second_moment_by_no_more_than_the_square(setting):
    """Adam forgets a large v at once; yogi's changes are +-(1 - b2) D^2, whatever v is."""
    options = {"server_rate": 0.01, "b1": 0.0, "b2": 0.9, "v0": 1.0}
    before = np.ones_like(flat(setting.initial))
    for models in fedopt.run(setting, **options, rule="yogi"):
        square, second = flat(models["first"]) ** 2, flat(models["second"])
        np.testing.assert_allclose(second, before - 0.1 * square, rtol=1e-12)
        before = second
    (adam, *_) = fedopt.run(setting, **options, rule="adam")
    assert flat(adam["second"]).max() < 0.95 < flat(models["second"]).min()


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_bias_correction_scales_the_rate(setting, rule):
    """The same m and v; with v_0 = 0 adam's first step is that of no memory at all."""
    options = {"rule": rule, "server_rate": 0.02, "b2": 0.999, "v0": 0.0, "tau": 0.0}
    common = setting.but(rounds=1)
    (plain,) = fedopt.run(common, **options)
    (corrected,) = fedopt.run(common, **options, bias_correction=True)
    np.testing.assert_array_equal(flat(plain["second"]), flat(corrected["second"]))
    start = flat(setting.initial)
    steps = [flat(models["global"]) - start for models in (plain, corrected)]
    np.testing.assert_allclose(steps[1], steps[0] * np.sqrt(0.001) / 0.1, rtol=1e-10)
    np.testing.assert_allclose(steps[1], 0.02 * np.sign(flat(plain["first"])), rtol=1e-9)
    before = setting.initial
    for t, models in enumerate(fedopt.run(setting, **options, bias_correction=True), start=1):
        rate = 0.02 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        step = flat(models["global"]) - flat(before)
        expected = rate * flat(models["first"]) / np.sqrt(flat(models["second"]))
        np.testing.assert_allclose(step, expected, rtol=1e-9)
        before = models["global"]


# ---- FedDyn


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
@pytest.mark.parametrize("scaling", feddyn.SCALINGS)
def test_it_is_the_published_codes_form(setting, scaling, cohorts):
    """There d_i adds up the moves, and theta is the cohort's mean and the mean of all d_i."""
    alpha = 0.3
    history = feddyn.run(setting.but(cohorts=cohorts), alpha=alpha, scaling=scaling)
    own = [alpha * np.mean(SIZES) / n if scaling == "size" else alpha for n in SIZES]
    theta, drift = flat(setting.initial), np.zeros((COUNT, len(flat(setting.initial))))
    last = np.tile(theta, (COUNT, 1))
    for t, models in enumerate(history):
        for i in cohorts[t]:
            y = theta.copy()
            for batch in setting.batches[t][i]:
                model = network.unflat(y, setting.initial)
                g = network.loss_and_gradient(model, setting.x[batch], setting.y[batch])[1]
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


# ---- SCAFFOLD


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_scaffold_mean_gradient_is_option_two(setting, cohorts):
    common = setting.but(cohorts=cohorts)
    mean = scaffold.run(common, server_rate=0.7)
    second = scaffold.run(common, server_rate=0.7, control_update="option_two")
    for a, b in zip(mean, second, strict=True):
        assert_same(a["global"], b["global"], rtol=1e-10)
        assert_same(a["control"], b["control"], rtol=1e-10, atol=1e-12)
        for own, other in zip(a["controls"], b["controls"], strict=True):
            assert_same(own, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_scaffold_control_is_the_mean_of_the_controls(setting, cohorts):
    before = np.zeros((COUNT, len(flat(setting.initial))))
    for t, models in enumerate(scaffold.run(setting.but(cohorts=cohorts))):
        controls = stack(models["controls"])
        np.testing.assert_allclose(
            flat(models["control"]), controls.mean(axis=0), rtol=1e-9, atol=1e-13
        )
        changed = set(np.flatnonzero((controls != before).any(axis=1)))
        assert changed == set(cohorts[t])
        before = controls


# ---- Weight Erosion


def test_weight_erosion_size_penalty_counts_passes():
    common = {"distance_penalty": 0.1, "size_penalty": 0.5, "batch_size": 4}
    alpha, distances = np.array([1.0, 1.0, 0.1, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    third = weight_erosion.eroded(alpha, distances, 3, (8, 8, 8, 3), **common)
    np.testing.assert_allclose(third, [1.0, 0.85, 0.0, 0.8], rtol=1e-14)  # floor(8/8), floor(8/3)
    first = weight_erosion.eroded(alpha, distances, 1, (8, 8, 8, 0), **common)
    np.testing.assert_allclose(first, [1.0, 0.9, 0.0, 0.9], rtol=1e-14)


# ---- FedAsync and asynchronous Per-FedAvg


def test_decays():
    assert [fedasync.decay("constant", x) for x in (0, 1, 9)] == [1.0, 1.0, 1.0]
    np.testing.assert_allclose([fedasync.decay("poly", x) for x in (0, 3)], [1.0, 0.5])
    assert fedasync.decay("poly", 1, a=2.0) == 0.25
    hinge = [fedasync.decay("hinge", x, a=10.0, b=4.0) for x in (0, 4, 5, 6)]
    np.testing.assert_allclose(hinge, [1.0, 1.0, 1 / 11, 1 / 21], rtol=1e-15)


def test_timetable_of_its_clients():
    starts, arrivals = perfedavg_async.timetable([0, 1, 2], 7)
    assert starts == [[0, 1, 2], [0], [0, 1], [0, 2], [0, 1], [0], [0, 1, 2]]
    assert arrivals == [[0], [0, 1], [0, 2], [0, 1], [0], [0, 1, 2], [0]]
