"""`Simulation`: rounds by hand, more rounds than before, and checks without a run."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.metrics_buffer import MetricsBuffer
from fedjax_pfl.engine.round_state import RoundState
from fedjax_pfl.testing.toys import toy_federation
from tests.engine.simulated import assert_same

SEEDS = (0, 3)


def simulation(name="feddwa", **options):
    federation = toy_federation(dtype="float32", participation=0.6, validation_size=0)
    return pfl.Simulation(pfl.make_algorithm(name), federation, seeds=SEEDS, **options)


def whole(name="feddwa", rounds=5, **options):
    return simulation(name, eval_every=2).run(rounds, **options)


@pytest.mark.costly
def test_more_rounds_continue_the_first_ones():
    """Round 3, scored as the last one, is not a scored round of the longer run."""
    one = simulation(eval_every=2)
    first = one.run(3, matrix_rounds=(1, 3))
    before = jax.tree.map(np.array, first.final.states)
    assert_same(one.run(5, matrix_rounds=(1, 5)), whole(matrix_rounds=(1, 3, 5)))
    jax.tree.map(np.testing.assert_array_equal, first.final.states, before)
    with pytest.raises(pfl.InputError, match=r"rounds must be .*6.*, got 5"):
        one.run(5)


@pytest.mark.costly
def test_rounds_by_hand():
    one = simulation()
    state, seen = one.init(), []
    with pytest.raises(pfl.InputError, match="no result before the first round"):
        state.result()
    start = jax.tree.map(np.array, state.states)
    first = state
    for _ in range(3):
        state, metrics = one.step(state)
        seen.append(metrics)
    assert state.round == 3
    jax.tree.map(np.testing.assert_array_equal, first.states, start)
    result = simulation().run(3, matrix_rounds=(1, 2, 3))
    jax.tree.map(np.testing.assert_array_equal, state.states, result.final.states)
    for t, metrics in enumerate(seen):
        for name, value in metrics["scores"].items():
            np.testing.assert_array_equal(value, result.scores[name][:, 0, t])
        mixing = result.matrices["mixing"][:, 0, t]
        np.testing.assert_array_equal(metrics["matrices"]["mixing"], mixing)
    assert_same(state.result(), result)


def test_a_state_belongs_to_one_simulation():
    one, other = simulation(), simulation("local")
    with pytest.raises(pfl.InputError, match=r"state must be .* of this simulation"):
        one.step(RoundState(other._program(), (), MetricsBuffer(1, 1, ()), other))


@pytest.mark.costly
@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"lr_schedule": lambda t, total: 0.9**t, "batch_order": "partition"}, False),
        ({"lr_schedule": "cosine"}, True),
        ({"dp": "client", "dp_clip": 0.5, "dp_epsilon": 2.0}, True),
    ],
)
def test_what_depends_on_the_number_of_rounds_is_asked_of_few(options, refused):
    one = pfl.Simulation(
        pfl.make_algorithm("fedavg"), toy_federation(local_steps=2, dtype="float32", **options)
    )
    if not refused:
        assert one.step(one.init())[0].round == 1
        return
    with pytest.raises(pfl.InputError, match=r"call init\(rounds=...\)"):
        one.init()


@pytest.mark.costly
def test_rounds_by_hand_with_state_on_the_host():
    federation = toy_federation(participation=0.6, client_state="host", dtype="float32")
    one = pfl.Simulation(pfl.make_algorithm("ditto"), federation)
    state = one.init(rounds=2)
    for _ in range(2):
        state, metrics = one.step(state)
    whole = one.run(2)
    for name, value in metrics["scores"].items():
        np.testing.assert_array_equal(value, whole.scores[name][:, 0, -1])


def test_arguments_are_checked_without_a_run():
    with pytest.raises(pfl.InputError, match="seeds must be"):
        pfl.Simulation(
            pfl.make_algorithm("fedavg"), toy_federation(dtype="float32"), seeds=()
        ).check()
    simulation().check(3)
    simulation().check_memory()
