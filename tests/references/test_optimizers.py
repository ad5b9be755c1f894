"""The optimizers of flat vectors, written out."""

import numpy as np
import pytest

from tests.references.optimizers import adam_begin, adam_step, clipped, sgd_step

FIRST, SECOND = np.array([0.3, -2.0, 0.0]), np.array([-1.0, 0.5, 0.25])
START = np.array([1.0, -4.0, 2.0])


def test_sgd_keeps_a_velocity_that_decay_enters():
    w, v = sgd_step(START, FIRST, np.zeros(3), 0.1, momentum=0.9, weight_decay=0.01)
    np.testing.assert_allclose(v, FIRST + 0.01 * START, rtol=1e-15)
    np.testing.assert_allclose(w, START - 0.1 * v, rtol=1e-15)
    w2, v2 = sgd_step(w, SECOND, v, 0.1, momentum=0.9, weight_decay=0.01)
    np.testing.assert_allclose(v2, 0.9 * v + SECOND + 0.01 * w, rtol=1e-15)
    np.testing.assert_allclose(w2, w - 0.1 * v2, rtol=1e-15)
    plain, _ = sgd_step(START, FIRST, np.zeros(3), 0.1)
    np.testing.assert_array_equal(plain, START - 0.1 * FIRST)
    each, _ = sgd_step(START, FIRST, np.zeros(3), np.array([0.0, 1.0, 2.0]))
    np.testing.assert_array_equal(each, [1.0, -2.0, 2.0])


def test_adam_by_hand():
    w, state = adam_step(START, FIRST, adam_begin(START), 0.1)
    # Freed of its bias, the first step is the rate times the gradient's sign.
    np.testing.assert_allclose(w, START - 0.1 * FIRST / (abs(FIRST) + 1e-8), rtol=1e-12)
    w2, (m, v, steps) = adam_step(w, SECOND, state, 0.1)
    assert steps == 2 and state[2] == 1
    np.testing.assert_allclose(m, 0.09 * FIRST + 0.1 * SECOND, rtol=1e-13)
    np.testing.assert_allclose(v, 0.000999 * FIRST**2 + 0.001 * SECOND**2, rtol=1e-13)
    slope = (m / (1 - 0.9**2)) / (np.sqrt(v / (1 - 0.999**2)) + 1e-8)
    np.testing.assert_allclose(w2, w - 0.1 * slope, rtol=1e-13)


def test_decay_of_adamw_stays_apart_from_the_moments():
    plain, moments = adam_step(START, FIRST, adam_begin(START), 0.1)
    decayed, (m, v, _) = adam_step(START, FIRST, adam_begin(START), 0.1, weight_decay=0.3)
    np.testing.assert_allclose(decayed, plain - 0.1 * 0.3 * START, rtol=1e-14)
    np.testing.assert_array_equal((m, v), moments[:2])


@pytest.mark.parametrize("times", [1, 5])
def test_adam_along_one_gradient_takes_equal_steps(times):
    w, state = START, adam_begin(START)
    for _ in range(times):
        w, state = adam_step(w, FIRST, state, 0.1)
    np.testing.assert_allclose(w, START - times * 0.1 * np.sign(FIRST), rtol=1e-7)


def test_clipping_shortens_and_never_lengthens():
    gradient = np.array([3.0, 4.0])
    np.testing.assert_allclose(clipped(gradient, 1.0), [0.6, 0.8], rtol=1e-15)
    np.testing.assert_array_equal(clipped(gradient, 5.5), gradient)
    np.testing.assert_array_equal(clipped(gradient, None), gradient)
    np.testing.assert_array_equal(clipped(np.zeros(2), 1.0), np.zeros(2))
