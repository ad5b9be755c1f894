"""pFedMe's reference: limits, a round by hand, and that personal models are models of their own."""

import numpy as np

from tests.references import network, pfedme
from tests.references.small import (
    COUNT,
    differences,
    flat,
)


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
