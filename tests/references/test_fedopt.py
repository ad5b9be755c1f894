"""FedOpt's references: rounds with vectors, limits in which they coincide, the code's options."""

import numpy as np
import pytest

from tests.references import fedavg, fedopt, network
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    SIZES,
    assert_same,
    flat,
    longer,
)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
@pytest.mark.parametrize("rule", fedopt.RULES)
def test_rounds_with_vectors(setting, rule, cohorts):
    """v_0 = tau^2, no bias correction, tau outside the root."""
    common = {**setting, "cohorts": cohorts, "rule": rule, "server_rate": 0.02}
    w = flat(setting["initial"])
    b1 = 0.0 if rule == "adagrad" else 0.9
    m, v = np.zeros_like(w), np.full_like(w, 1e-6)
    for t, models in enumerate(fedopt.run(**common)):
        start = network.unflat(w, setting["initial"])
        trained = [
            flat(sgd(start, setting["batches"][t][i], setting["x"], setting["y"], RATES[t]))
            for i in cohorts[t]
        ]
        sizes = np.array([SIZES[i] for i in cohorts[t]])
        change = sizes / sizes.sum() @ np.array(trained) - w
        m = b1 * m + (1 - b1) * change
        if rule == "adagrad":
            v = v + change**2
        elif rule == "adam":
            v = 0.99 * v + 0.01 * change**2
        else:
            v = np.where(v > change**2, v - 0.01 * change**2, v + 0.01 * change**2)
        w = w + 0.02 * m / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(flat(models["global"]), w, rtol=1e-10)
        np.testing.assert_allclose(flat(models["first"]), m, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(flat(models["second"]), v, rtol=1e-9)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
@pytest.mark.parametrize("rule", fedopt.RULES)
def test_a_large_tau_leaves_fedavg(setting, rule, cohorts):
    """w + eta D / (sqrt(v) + tau) with eta = tau, and b1 = 0."""
    common = {**setting, "cohorts": cohorts}
    history = fedopt.run(**common, rule=rule, server_rate=1e14, tau=1e14, v0=0.0, b1=0.0)
    for models, expected in zip(history, fedavg.run(**common), strict=True):
        assert_same(models["global"], expected["global"])
    # With v_0 = tau^2, as in the paper, at twice the rate; adam must not forget v_0.
    history = fedopt.run(**common, rule=rule, server_rate=2e14, tau=1e14, b1=0.0, b2=1.0)
    assert_same(history[-1]["global"], fedavg.run(**common)[-1]["global"])


def test_without_memory_and_tau_adam_steps_by_signs(setting):
    options = {"rule": "adam", "server_rate": 0.02, "b1": 0.0, "b2": 0.0, "tau": 0.0}
    before = flat(setting["initial"])
    for models in fedopt.run(**setting, **options):
        step = flat(models["global"]) - before
        np.testing.assert_allclose(step, 0.02 * np.sign(flat(models["first"])), rtol=1e-9)
        before = flat(models["global"])


def test_yogi_changes_its_second_moment_by_no_more_than_the_square(setting):
    """Adam forgets a large v at once; yogi's changes are +-(1 - b2) D^2, whatever v is."""
    options = {"server_rate": 0.01, "b1": 0.0, "b2": 0.9, "v0": 1.0}
    before = np.ones_like(flat(setting["initial"]))
    for models in fedopt.run(**setting, **options, rule="yogi"):
        square, second = flat(models["first"]) ** 2, flat(models["second"])
        np.testing.assert_allclose(second, before - 0.1 * square, rtol=1e-12)
        before = second
    (adam, *_) = fedopt.run(**setting, **options, rule="adam")
    assert flat(adam["second"]).max() < 0.95 < flat(models["second"]).min()


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_bias_correction_scales_the_rate(setting, rule):
    """The same m and v; with v_0 = 0 adam's first step is that of no memory at all."""
    options = {"rule": rule, "server_rate": 0.02, "b2": 0.999, "v0": 0.0, "tau": 0.0}
    common = {**setting, "rounds": 1}
    (plain,) = fedopt.run(**common, **options)
    (corrected,) = fedopt.run(**common, **options, bias_correction=True)
    np.testing.assert_array_equal(flat(plain["second"]), flat(corrected["second"]))
    start = flat(setting["initial"])
    steps = [flat(models["global"]) - start for models in (plain, corrected)]
    np.testing.assert_allclose(steps[1], steps[0] * np.sqrt(0.001) / 0.1, rtol=1e-10)
    np.testing.assert_allclose(steps[1], 0.02 * np.sign(flat(plain["first"])), rtol=1e-9)
    before = setting["initial"]
    for t, models in enumerate(fedopt.run(**setting, **options, bias_correction=True), start=1):
        rate = 0.02 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        step = flat(models["global"]) - flat(before)
        expected = rate * flat(models["first"]) / np.sqrt(flat(models["second"]))
        np.testing.assert_allclose(step, expected, rtol=1e-9)
        before = models["global"]
    with pytest.raises(ValueError, match="no bias"):
        fedopt.run(**setting, rule="adagrad", server_rate=0.1, bias_correction=True)


@pytest.mark.parametrize("rule", fedopt.RULES)
def test_rounds_without_clients_do_not_count(setting, rule):
    options = {"rule": rule, "server_rate": 0.02, "bias_correction": rule != "adagrad"}
    gaps = {**longer(setting, 5), "cohorts": [[0, 1], [], [2, 3], [], [1]]}
    history = fedopt.run(**gaps, **options)
    for t in (1, 3):
        for name in ("global", "first", "second"):
            assert history[t][name] is history[t - 1][name]
    kept = [0, 2, 4]
    picked = {key: [gaps[key][t] for t in kept] for key in ("cohorts", "batches", "learning_rate")}
    short = fedopt.run(**{**gaps, **picked, "rounds": 3}, **options)
    np.testing.assert_array_equal(flat(short[-1]["global"]), flat(history[-1]["global"]))


def test_the_order_of_clients_does_not_matter_and_names_are_checked(setting):
    options = {"rule": "adam", "server_rate": 0.02}
    turned = [list(reversed(range(COUNT)))] * ROUNDS
    one, other = (
        fedopt.run(**{**setting, "cohorts": cohorts}, **options) for cohorts in (EVERYBODY, turned)
    )
    assert_same(one[-1]["global"], other[-1]["global"], atol=1e-9)
    with pytest.raises(ValueError, match="Unknown rule"):
        fedopt.run(**setting, rule="adamw", server_rate=0.1)
