"""FedOpt's references: rounds with vectors, limits in which they coincide, the code's options."""

import numpy as np
import pytest

from tests.references import fedopt
from tests.references.small import (
    flat,
)


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
