"""WAFFLE's raw weights beside those of the reference, and who is absent."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import Context
from fedjax_pfl.algorithms.waffle import Waffle
from fedjax_pfl.testing.toys import toy_federation
from tests.references import waffle

UPDATES = {
    "line": np.arange(4.0)[:, None],
    "equal": np.ones((4, 3)),  # even weights until the last rounds
    "two": np.array([[1.0], [3.0]]),
    "alone": np.array([[5.0]]),
    "plane": np.random.default_rng(0).normal(size=(6, 2)),
}
LAST = [(94, 100), (95, 100), (37, 40), (38, 40), (18, 20), (19, 20), (18, 19), (19, 19), (6, 7)]


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


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_raw_weights_are_the_references(update):
    """Also of updates of another length."""
    for alice in {0, len(update) - 1}:
        distances = np.linalg.norm(update - update[alice], axis=1)
        for number, total in ((1, 100), (25, 100), (50, 100), *LAST):
            _, wanted = waffle.calc_weights(distances, alice, number, total, 0, 0)
            for scale in (1, 1e-3):
                found = raw_weights(scale * update, alice, t=number - 1, total=total)
                np.testing.assert_allclose(found, wanted, atol=1e-9, err_msg=f"{number} of {total}")


def test_raw_weights_of_absent_agents():
    absent = raw_weights([[0.0], [1.0], [2.0], [9.0]], present=[1, 1, 1, 0])
    np.testing.assert_allclose(absent[:3], raw_weights([[0.0], [1.0], [2.0]]))
    assert absent[3] == 0


def test_raw_weights_that_are_all_zero():
    """Where a steep Omega underflows."""
    found = raw_weights([[0.0], [1.0], [2.0]], t=80, delta_omega=1e4)
    np.testing.assert_array_equal(found, [1, 0, 0])
