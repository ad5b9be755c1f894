"""FedDyn's reference: invariants, the published code's form, a fixed point, absent clients."""

import numpy as np
import pytest

from tests.references import feddyn, network
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    SIZES,
    flat,
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


def test_after_exact_local_minima_g_is_the_gradient_there(setting):
    own, x, y = [client["samples"] for client in setting["clients"]], setting["x"], setting["y"]
    common = {**setting, "batches": [[[samples] * 150 for samples in own]] * ROUNDS}
    for models in feddyn.run(**{**common, "learning_rate": [0.25] * ROUNDS}, alpha=2.0):
        for i in range(COUNT):
            _, g = network.loss_and_gradient(models["trained"][i], x[own[i]], y[own[i]])
            np.testing.assert_allclose(flat(models["gradients"][i]), flat(g), atol=1e-7)
