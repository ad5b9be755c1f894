"""WAFFLE's reference: weights and their schedule, its limits SCAFFOLD and local training."""

import numpy as np

from tests.references import network, waffle
from tests.references.local_sgd import sgd
from tests.references.small import COUNT, assert_same, flat, longer

# ------------------------------------------------------------------ the weights


def test_waffle_cut_off_is_smoothed_too():
    count, horizon = 4, 20
    previous = before = np.full(count, 1 / count)
    smoothed = {}
    for number in range(1, horizon + 1):
        abar, raw = waffle.calc_weights(
            [0.0, 1.0, 1.1, 1.5], 0, number, horizon, previous, before, delta_omega=0.5
        )
        np.testing.assert_allclose([raw.sum(), abar.sum()], 1.0, rtol=1e-14)
        assert raw[0] == raw.max() and raw.min() == 0.0
        assert (number >= 19) == np.array_equal(raw, np.eye(count)[0])
        smoothed[number], before, previous = abar, previous, raw
    assert smoothed[1].min() > 0.0  # the initial history of 1/N
    assert smoothed[20][1] > 0.0  # R = 20: local from round 21 on
    _, first = waffle.calc_weights([0.0, 1.0], 0, 95, 100, np.ones(2) / 2, np.ones(2) / 2)
    np.testing.assert_array_equal(first, [1.0, 0.0])
    _, late = waffle.calc_weights([0.0, 1.0], 0, 94, 100, np.ones(2) / 2, np.ones(2) / 2)
    np.testing.assert_array_equal(late, [0.5, 0.5])


# ------------------------------------------------------------------ the rounds


def test_waffle_switched_to_alice_alone_drifts_under_the_literal_rule_only(setting):
    common = longer(setting, 5)
    forced = [np.full(COUNT, 1 / COUNT)] * 2 + [np.eye(COUNT)[1]] * 3
    rebased = waffle.run(common, alice=1, forced=forced)
    literal = waffle.run(common, alice=1, forced=forced, control_rule="literal")

    def offset(models):
        return flat(models["control"]) - flat(models["controls"][1])

    drift = offset(literal[1])
    assert np.abs(drift).max() > 1e-3
    for t in (2, 3, 4):
        np.testing.assert_array_equal(offset(rebased[t]), 0.0)
        np.testing.assert_allclose(offset(literal[t]), drift, rtol=1e-10, atol=1e-14)
    for t in (3, 4):
        batches, rate = common.batches[t][1], common.learning_rate[t]
        alone = sgd(rebased[t - 1]["alice"], batches, setting.x, setting.y, rate)
        assert_same(rebased[t]["alice"], alone, rtol=1e-9, atol=1e-12)
        drifting = sgd(
            literal[t - 1]["alice"],
            batches,
            setting.x,
            setting.y,
            rate,
            extra_gradient=lambda params: network.unflat(drift, params),
        )
        assert_same(literal[t]["alice"], drifting, rtol=1e-9, atol=1e-12)
