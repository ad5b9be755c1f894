"""References whose server keeps momentum, second moments, controls or late uploads."""

import numpy as np
import pytest

from tests.references import (
    fedasync,
    feddyn,
    fedopt,
    network,
    weight_erosion,
)
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    SIZES,
    flat,
    stack,
)

# ---- FedOpt


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
    with pytest.raises(ValueError, match="Unknown decay"):
        fedasync.decay("linear", 1)
