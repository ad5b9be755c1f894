"""WAFFLE's raw weights: worked examples, the schedule, invariants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl import Context
from fedjax_pfl.algorithms.waffle import Waffle
from fedjax_pfl.testing.toys import toy_federation


def raw_weights(update, alice=0, present=None, t=49, total=100, **options):
    """`Waffle.raw_weights` of updates [M, d]."""
    update = {"w": jnp.asarray(update)}
    count = len(update["w"])
    federation = toy_federation()
    ctx = Context(federation, None, jnp.int32(t), jnp.int32(total), None)
    present = jnp.ones(count, bool) if present is None else jnp.asarray(present)
    return np.asarray(
        Waffle(**options).raw_weights(ctx, update, jnp.arange(count) == alice, present)
    )


def test_raw_weights_of_a_worked_example():
    weights = raw_weights([[0.0], [1.0], [2.0], [3.0]])  # round 50 of 100: Omega = Psi = 0.5
    np.testing.assert_allclose(weights, [0.583333, 0.416667, 0, 0], atol=1e-6)


def test_schedule_of_a_hundred_rounds():
    # With Omega 0, d_alice is 1 (1 - 1/2) = 1/2, and the nearer agent loses (1 - 1/2) / (2 - 1/2).
    for number, psi in ((1, 0.958), (25, 0.832)):
        update = [[0.0], [1.0], [2.0]]
        own, near, far = raw_weights(update, t=number - 1, omega=lambda r, R: 0.0)
        assert far == 0
        np.testing.assert_allclose(near / own, (psi - 1 / 3) / psi, atol=1e-3)
    np.testing.assert_array_equal(raw_weights([[0.0], [1.0], [2.0]], t=94), [1, 0, 0])


@pytest.mark.parametrize(("total", "first"), [(100, 95), (40, 38), (20, 19), (19, 19), (7, 7)])
def test_raw_weights_in_the_last_rounds(total, first):
    update = [[0.0], [1.0], [2.0]]
    before, after = (
        raw_weights(update, t=number - 1, total=total, psi=lambda r, R: 0.9)
        for number in (first - 1, first)
    )
    assert before[1] > 0.1
    np.testing.assert_array_equal(after, [1, 0, 0])


entries = st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=2, max_size=2)
updates = st.sampled_from([2, 3, 6]).flatmap(  # each number of agents compiles anew
    lambda count: st.lists(entries, min_size=count, max_size=count)
)


@settings(max_examples=40, deadline=None)
@given(updates, st.integers(0, 99), st.floats(1e-3, 1e3), st.data())
@pytest.mark.costly
def test_invariants_of_raw_weights(update, t, scale, data):
    with jax.enable_x64(True):
        update = np.round(np.array(update), 3)
        alice = data.draw(st.integers(0, len(update) - 1))
        weights = raw_weights(update, alice, t=t)
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(), 1)
        assert weights[alice] == weights.max()
        distance = np.linalg.norm(update - update[alice], axis=1)
        others = np.delete(distance, alice)
        if others.max() > others.min() + 1e-6:  # the farthest has none: never uniform
            assert weights[np.argmax(distance)] < 1e-9
        np.testing.assert_allclose(raw_weights(scale * update, alice, t=t), weights, atol=1e-7)


@pytest.mark.costly
def test_raw_weights_of_equal_agents():
    np.testing.assert_allclose(raw_weights(np.ones((4, 3))), np.full(4, 0.25))
    np.testing.assert_allclose(raw_weights([[1.0], [3.0]], 1), [0.5, 0.5])  # N = 2
    np.testing.assert_array_equal(raw_weights([[5.0]]), [1])
    absent = raw_weights([[0.0], [1.0], [2.0], [9.0]], present=[1, 1, 1, 0])
    np.testing.assert_allclose(absent[:3], raw_weights([[0.0], [1.0], [2.0]]))
    assert absent[3] == 0


def test_raw_weights_that_are_all_zero():
    np.testing.assert_array_equal(
        raw_weights([[0.0], [1.0], [2.0]], psi=lambda r, R: 0.0), [1, 0, 0]
    )
