"""WAFFLE's reference: weights and their schedule, its limits SCAFFOLD and local training."""

import numpy as np

from tests.references import waffle

# ------------------------------------------------------------------ the weights


def test_waffle_weights_of_the_worked_example():
    weights = waffle.raw_weights([0.0, 1.0, 2.0, 3.0], 0, 0.5, 0.5)
    np.testing.assert_allclose(weights, [0.5, 0.5 - 1 / 7, 0, 0], rtol=1e-14)
    normalized = weights / weights.sum()
    np.testing.assert_allclose(normalized, [0.583333, 0.416667, 0, 0], atol=5e-7)
    moved = waffle.raw_weights([3.0, 1.0, 0.0, 2.0], 2, 0.5, 0.5)
    np.testing.assert_allclose(moved, weights[[3, 1, 0, 2]], rtol=1e-14)
    scaled = waffle.raw_weights([0.0, 1e-9, 2e-9, 3e-9], 0, 0.5, 0.5)
    np.testing.assert_allclose(scaled, weights, rtol=1e-12)


def test_waffle_schedule_of_the_paper():
    rounds = np.array([1, 25, 50, 75, 90, 100])
    expected = [0.958, 0.832, 0.5, 0.168, 0.072, 0.039]
    np.testing.assert_allclose(waffle.personalization(rounds, 100), expected, atol=5e-4)


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
