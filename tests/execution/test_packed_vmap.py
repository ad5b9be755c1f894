"""Loops of unequal length: same results by every strategy, and no more steps than announced."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.execution.lane_assignment import FULL, assign_lanes, makespan
from fedjax_pfl.execution.packed_vmap import Loop, run_loops
from fedjax_pfl.execution.strategy import Execution

PER_SEGMENT = 3


def walking(step=lambda row, k: None):
    """Adds up 1 * start, 2 * start, ... in segments of three; enters are counted where they end."""
    return Loop(
        begin=lambda row, broadcast: {"k": 0, "end": 0, "sum": 0.0, "segments": 0},
        enter=lambda row, s: (
            s
            | {
                "end": jnp.minimum((s["k"] // PER_SEGMENT + 1) * PER_SEGMENT, row["steps"]),
                "segments": s["k"] // PER_SEGMENT + 1,
            }
        ),
        inside=lambda row, s: s["k"] < s["end"],
        unfinished=lambda row, s: s["k"] < row["steps"],
        step=lambda row, broadcast, s: (
            step(row, s["k"]),
            s | {"k": s["k"] + 1, "sum": s["sum"] + broadcast * row["start"] * (s["k"] + 1)},
        )[1],
        finish=lambda row, broadcast, s: {
            "sum": s["sum"],
            "k": s["k"],
            "segments": jnp.where(row["steps"] > 0, s["segments"], 0),
        },
    )


LENGTHS = np.array([4, 0, 11, 3, 1, 6, 6, 0, 2, 25, 3])


def rows():
    count = len(LENGTHS)
    return {"steps": jnp.asarray(LENGTHS), "start": jnp.arange(count, dtype=jnp.float32)}


def walked(executions, rows):
    """(execution, what its loops end with) of several, in one program."""

    @jax.jit
    def all_of_them(rows):
        return [run_loops(lambda _: walking(), rows, 2.0, one, rows["steps"]) for one in executions]

    return zip(executions, all_of_them(rows), strict=True)


@pytest.mark.costly
@pytest.mark.parametrize("devices", [1, 2])
def test_packed_vmap_rows_of_unequal_length(devices):
    plain = [Execution(max_lanes, "map", devices) for max_lanes in (0, 1, 2, 3, 4, 7, 10, 11, 30)]
    executions = dict.fromkeys([*plain, *(assign_lanes(one, LENGTHS) for one in plain)])
    assert len(executions) > len(plain)
    wanted = np.arange(len(LENGTHS)) * LENGTHS * (LENGTHS + 1)
    for execution, done in walked(executions, rows()):
        said = repr(execution)
        np.testing.assert_array_equal(done["k"], LENGTHS, said)
        np.testing.assert_array_equal(done["sum"], wanted, said)
        np.testing.assert_array_equal(done["segments"], -(-LENGTHS // PER_SEGMENT), said)


@pytest.mark.parametrize("max_lanes", [2, 5])
def test_packed_vmap_without_steps(max_lanes):
    nothing = {"steps": jnp.zeros(5, int), "start": jnp.arange(5)}
    loop = walking()._replace(finish=lambda row, broadcast, s: (row["start"] + 1, s["k"]))
    done, steps = run_loops(
        lambda _: loop, nothing, 1.0, Execution(max_lanes, "map"), nothing["steps"]
    )
    np.testing.assert_array_equal(done, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(steps, np.zeros(5))


@pytest.mark.costly
def test_packed_vmap_with_and_without_dealing_rows():
    """Ten rows that two devices divide."""
    some = jax.tree.map(lambda leaf: leaf[:10], rows())
    executions = [
        Execution(max_lanes, "map", 2, deal=deal)
        for max_lanes in (0, 1, 2)
        for deal in (True, False)
    ]
    wanted = np.arange(10) * LENGTHS[:10] * (LENGTHS[:10] + 1)
    for execution, done in walked(executions, some):
        np.testing.assert_array_equal(done["k"], LENGTHS[:10], repr(execution))
        np.testing.assert_array_equal(done["sum"], wanted, repr(execution))


@pytest.mark.parametrize("lanes", [2, 3, 4, 7, 11])
def test_lanes_take_the_steps_that_are_announced(lanes):
    """A lane that is done takes the next row at once."""
    calls = Counter()
    loop = walking(lambda row, k: jax.debug.callback(lambda _: calls.update(steps=1), k))
    run_loops(lambda _: loop, rows(), 1.0, Execution(lanes, "map"), jnp.asarray(LENGTHS))
    jax.effects_barrier()
    assert calls["steps"] == lanes * makespan(LENGTHS, lanes)
    assert makespan(LENGTHS, lanes) <= LENGTHS.sum() / lanes + LENGTHS.max()


@pytest.mark.costly
def test_runs_as_lanes_of_rows_as_lanes():
    """Lengths that differ between runs: their conditions differ as well."""
    others = np.full(len(LENGTHS), 3)  # done in fewer turns
    both = jnp.stack([jnp.asarray(LENGTHS), jnp.asarray(LENGTHS[::-1]), jnp.asarray(others)])

    def run(lengths):
        given = rows() | {"steps": lengths}
        executions = [Execution(max_lanes, "vmap") for max_lanes in (3, 0)]
        return [run_loops(lambda _: walking(), given, 1.0, one, lengths)["k"] for one in executions]

    for found in jax.vmap(run)(both):
        np.testing.assert_array_equal(found, both)


def test_fitted():
    """As many lanes as keep the padding efficiency, for the rows' real lengths."""
    rng = np.random.default_rng(0)
    some = ([50] + [1] * 99, [9, 1], [5, 5, 4, 3, 3])
    for steps in (rng.pareto(1.5, 100).astype(int), *map(np.array, some)):
        execution = assign_lanes(Execution(0, "map"), steps)
        lanes = execution.lanes(len(steps))
        assert steps.sum() >= FULL * lanes * makespan(steps, lanes)
        wider = steps.sum() / ((lanes + 1) * makespan(steps, lanes + 1))
        assert wider < FULL
    assert assign_lanes(Execution(0, "map"), np.full(7, 3)) == Execution(0, "map", deal=False)
    assert assign_lanes(Execution(0, "map"), np.zeros(7, int)) == Execution(0, "map", deal=False)
    assert assign_lanes(Execution(5, "map"), np.arange(7)) == Execution(5, "map", deal=False)
    half = Execution(0, "map", fill=0.26)
    assert [half.lanes(count) for count in (100, 20, 3, 1)] == [26, 5, 1, 1]


def test_makespan():
    assert makespan(np.array([5, 4, 3, 3, 3]), 2) == 10  # longest first: (5, 3), (4, 3, 3)
    assert makespan(np.array([2, 7]), 5) == 7
    assert makespan(np.arange(5), 1) == 10


def test_clients_change_devices_only_where_that_evens_out_work():
    two = Execution(1, "map", 2)
    assert not assign_lanes(two, np.full(6, 4)).deal
    assert not assign_lanes(two, np.array([9, 1, 5, 5])).deal
    assert assign_lanes(two, np.array([9, 9, 1, 1])).deal
    assert not assign_lanes(two, np.full(5, 4)).deal  # of five, one device has three: it must
    assert assign_lanes(two, np.array([9, 9, 9, 1, 1])).deal
    assert not assign_lanes(two, np.zeros(4, int)).deal


def test_lanes_by_rounding_to_one():
    """One lane is one row after the other, not all of them side by side."""
    calls = Counter()
    loop = walking(lambda row, k: jax.debug.callback(lambda _: calls.update(steps=1), k))
    execution = Execution(0, "map", fill=0.05)
    assert execution.lanes(len(LENGTHS)) == 1
    run_loops(lambda _: loop, rows(), 1.0, execution, jnp.asarray(LENGTHS))
    jax.effects_barrier()
    assert calls["steps"] == LENGTHS.sum()


def test_equal_lengths_in_unequal_segments():
    """Lanes of all rows: none waits long at the end of another's segment."""
    done = run_loops(lambda _: walking(), rows(), 1.0, Execution(0, "map"), jnp.asarray(LENGTHS))
    np.testing.assert_array_equal(done["k"], LENGTHS)


def test_a_lane_for_every_row_moves_no_row():
    """A stack of models is neither gathered nor scattered, which a TPU does slowly."""

    def walk(rows, max_lanes):
        return run_loops(lambda _: walking(), rows, 2.0, Execution(max_lanes, "map"), rows["steps"])

    for max_lanes, moved in ((3, True), (0, False), (11, False)):
        text = str(jax.make_jaxpr(walk, static_argnums=1)(rows(), max_lanes))
        assert ("gather" in text) == ("scatter" in text) == ("sort" in text) == moved
