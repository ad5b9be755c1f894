"""Adaptation's minibatches, its proximal term, and what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.adaptation import JointEpochs
from fedjax_pfl.testing.toys import assert_close, toy_federation


@pytest.mark.parametrize("epochs", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_joint_epochs_count_minibatches_over_all_epochs(epochs, batch_size):
    """max(floor(E n / B), E), and nothing for a client without samples."""
    sizes = np.arange(12)
    wanted = [max(int(epochs * n / batch_size), epochs) * (n > 0) for n in sizes]
    schedule = JointEpochs(epochs, batch_size=batch_size)
    assert schedule.total_steps(sizes).tolist() == wanted
    assert schedule.fitting(11).total_steps(sizes).tolist() == wanted
    assert jax.vmap(schedule.total_steps)(jnp.asarray(sizes)).tolist() == wanted


def test_joint_epochs_that_can_not_be_counted():
    JointEpochs(2**16, batch_size=2**14).check_counts(2**15 - 1)
    with pytest.raises(pfl.InputError, match="65,536 epochs of a client with 32,768 samples are t"):
        JointEpochs(2**16, batch_size=2**14).check_counts(2**15)


@pytest.mark.costly
def test_the_rate_of_copies_times_a_factor():
    """Of the round's rate, or of the adaptation's own; an algorithm's numbers may be traced."""
    federation = toy_federation(learning_rate=0.3, dtype="float32")

    @jax.jit
    def adapted(factor, rate):
        nobody: Any = None
        ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(1), nobody)
        model, rows = ctx.initial_model(), jnp.arange(5)
        ways = (
            pfl.Adaptation(rate_factor=factor),
            pfl.Adaptation(learning_rate=rate),
            pfl.Adaptation(learning_rate=rate, rate_factor=0.5),
            pfl.Adaptation(learning_rate=rate / 2),
        )
        return [ctx.adapt(pfl.Broadcast(model), rows, how) for how in ways]

    one, other, half, halved = adapted(0.5, 0.15)
    assert_close(one, other, "of the round's rate", 1e-6)
    assert_close(half, halved, "of its own", 1e-6)
    assert "0.5 times the round's rate" in str(pfl.Adaptation(rate_factor=0.5))


@pytest.mark.costly
def test_copies_of_clients_own_models_stay_near_them():
    """Each is pulled to its own; a weight of 0 pulls nobody."""
    federation = toy_federation((4,) * 5, (2,) * 5, dtype="float32", learning_rate=0.1)

    @jax.jit
    def adapted():
        nobody: Any = None
        ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(1), nobody)
        first = [ctx.initial_model(f"client {i}") for i in range(5)]
        own = jax.tree.map(lambda *leaves: jnp.stack(leaves), *first)
        ways = (pfl.Adaptation(steps=2, proximal_weight=weight) for weight in (None, 0.0, 9.0))
        return own, *(ctx.adapt(own, jnp.arange(5), how) for how in ways)

    own, free, nobodys, pulled = adapted()
    assert_close(nobodys, free, "a weight of 0", 1e-6)
    far, near = (
        jax.tree.leaves(
            jax.tree.map(lambda a, b: np.abs(a - b).max(axis=tuple(range(1, a.ndim))), *pair)
        )
        for pair in ((free, own), (pulled, own))
    )
    assert (np.max(near, axis=0) > 0).all() and (np.max(near, axis=0) < np.max(far, axis=0)).all()


def test_a_table_says_that_a_guarantee_is_spent_at_the_end():
    algorithm = pfl.make_algorithm("fedavg_ft", {"final_only": True})
    (told,) = algorithm.remarks(toy_federation(dtype="float32"))
    assert told.endswith("on a copy, after the last round only")
    (told,) = pfl.make_algorithm("fedavg_ft").remarks(toy_federation(dtype="float32"))
    assert told == "scored after 1 local epoch on a copy"
