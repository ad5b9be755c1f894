"""The executor: every client sees its own batches, under whatever strategy the lanes are run."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import Broadcast
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.training import Schedule, batch_indices
from fedjax_pfl.training.client_loop import run_clients

SIZES = (7, 3, 0, 10, 4)
IDS = (40, 10, 30, 20, 0)
KEY = jax.random.key(5)
STEPS = 12  # steps that a log has room for
ROWS = jnp.arange(5)


def numbered(execution="map", sizes=SIZES):
    """A federation whose samples are their own pool indices."""
    federation = toy_federation(sizes, (1,) * 5, dtype="float32", client_execution=execution)
    data = federation.data
    pool = jnp.arange(len(data.samples), dtype=jnp.float32)
    data = replace(data, samples=jnp.tile(pool[:, None], 4), ids=jnp.array(IDS))
    return replace(federation, data=data)


def empty_log(schedule, count=5):
    shape = (STEPS, schedule.batches_per_step, schedule.batch_size)
    return {"batches": jnp.full((count, *shape), -1, jnp.int32), "ran": jnp.zeros(count)}


def write(log, batches, rng, broadcast, client):
    """Notes which samples a step was handed."""
    batches = batches if isinstance(batches, tuple) else (batches,)
    seen = jnp.stack([jnp.where(b.valid, b.inputs[:, 0].astype(jnp.int32), -1) for b in batches])
    return {"batches": log["batches"].at[client.step].set(seen), "ran": log["ran"] + 1}


@partial(jax.jit, static_argnames=("step", "schedule"))
def program(federation, carry, rows, options, step, schedule):
    return run_clients(federation, step, carry, rows=rows, key=KEY, schedule=schedule, **options)


def run(federation, schedule, rows=ROWS, carry=None, step=write, **options):
    """(carries, finite, steps) on the host."""
    carry = empty_log(schedule, len(rows)) if carry is None else carry
    return jax.device_get(program(federation, carry, rows, options, step, schedule))


def walked(done):
    """For each client the list of its steps, each a list of batches of valid indices."""
    return [
        [[b[b >= 0].tolist() for b in log[k]] for k in range(int(ran))]
        for log, ran in zip(done["batches"], done["ran"], strict=True)
    ]


def wanted(federation, schedule, rows=range(5), cursor=(0,) * 5, active=(True,) * 5):
    """The same from `batch_indices`."""
    split = jax.device_get(federation.data.train)
    lists = [
        batch_indices(schedule, split, KEY, IDS[i], i, cursor[n]) if active[n] else []
        for n, i in enumerate(rows)
    ]
    return [[[np.asarray(b).tolist() for b in step] for step in client] for client in lists]


EPOCHS = Schedule(epochs=2, batch_size=4)


@pytest.mark.parametrize(
    "execution", ["map", *(pytest.param(k, marks=pytest.mark.costly) for k in ("vmap", "3"))]
)
def test_every_strategy_hands_out_the_batches_of_batch_indices(execution):
    federation = numbered(execution)
    done, finite, steps = run(federation, EPOCHS)
    assert walked(done) == wanted(federation, EPOCHS)
    np.testing.assert_array_equal(done["ran"], [4, 2, 0, 6, 2])
    np.testing.assert_array_equal(steps, done["ran"])
    assert finite.all()


def test_clients_of_equal_sizes_whose_steps_are_known_beforehand():
    federation = numbered(sizes=(6,) * 5)
    assert federation.data.train.equal
    done, *_ = run(federation, EPOCHS)
    assert walked(done) == wanted(federation, EPOCHS)
    np.testing.assert_array_equal(done["ran"], [4] * 5)


def test_each_epoch_covers_a_clients_samples_exactly_once():
    federation = numbered()
    train = federation.data.train
    for client, steps in enumerate(walked(run(federation, EPOCHS)[0])):
        start, size = int(train.offset[client]), SIZES[client]
        own = np.asarray(train.index)[start : start + size]
        half = len(steps) // 2
        parts = steps[:half], steps[half:]
        epochs = [[i for step in part for b in step for i in b] for part in parts]
        assert [sorted(epoch) for epoch in epochs] == [own.tolist()] * 2
        if size > 4:
            assert epochs[0] != epochs[1]  # shuffled anew


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(batch_size=4, drop_last=True),
        Schedule(steps=5, batch_size=4),
        Schedule(batch_size=2, batches_per_step=2),
        pytest.param(Schedule(steps=5, batch_size=4, drop_last=True), marks=pytest.mark.costly),
        pytest.param(Schedule(epochs=2, batch_size=4, fresh=True), marks=pytest.mark.costly),
        pytest.param(
            Schedule(epochs=2, batch_size=1, batches_per_step=3, drop_last=True),
            marks=pytest.mark.costly,
        ),
    ],
)
def test_schedules(schedule):
    federation = numbered()
    assert walked(run(federation, schedule)[0]) == wanted(federation, schedule)


def test_no_step_is_handed_more_rows_than_the_largest_client_fills():
    shapes = []

    def look(carry, batch, rng, broadcast, client):
        shapes.append(batch.labels.shape)
        return carry + batch.valid.sum()

    schedule = Schedule(epochs=2, batch_size=1000)
    done, *_ = run(numbered(), schedule, carry=jnp.zeros(5, jnp.int32), step=look)
    assert set(shapes) == {(10,)}
    np.testing.assert_array_equal(done, 2 * np.array(SIZES))


def test_steps_cross_epochs():
    done, *_ = run(numbered(), Schedule(steps=5, batch_size=4))
    np.testing.assert_array_equal(done["ran"], [5, 5, 0, 5, 5])
    steps = walked(done)
    assert [len(b[0]) for b in steps[0]] == [4, 3, 4, 3, 4]
    assert [len(b[0]) for b in steps[1]] == [3] * 5
    for first in (0, 2):
        assert len({i for step in steps[0][first : first + 2] for i in step[0]}) == 7


def test_active_masks_and_cursors_of_an_unshuffled_walk():
    federation = numbered("vmap")
    schedule = Schedule(steps=3, batch_size=4, shuffle=False)
    cursor, active = (0, 1, 5, 2, 7), (True, False, True, True, True)
    options = {"cursor": jnp.array(cursor), "active": jnp.array(active)}
    done, finite, steps = run(federation, schedule, **options)
    assert walked(done) == wanted(federation, schedule, cursor=cursor, active=active)
    start = int(federation.data.train.offset[3])
    own = np.asarray(federation.data.train.index)[start : start + 10].tolist()
    assert walked(done)[3] == [[own[8:]], [own[:4]], [own[4:8]]]  # steps 2, 3 and 4 of 3 an epoch
    np.testing.assert_array_equal(steps, done["ran"])
    assert finite.all()


def test_a_window_is_a_part_of_each_clients_samples():
    """In its order, or shuffled; the number of steps is the window's."""
    federation = numbered()
    train = jax.device_get(federation.data.train)
    start, size = (2, 0, 0, 5, 3), (5, 1, 0, 4, 1)
    parts = [
        train.index[offset + first : offset + first + count].tolist()
        for offset, first, count in zip(train.offset, start, size, strict=True)
    ]
    window = federation.data.train.window(jnp.array(start), jnp.array(size))
    seen = []
    for shuffle in (False, True):
        schedule = Schedule(batch_size=4, shuffle=shuffle)
        done, _, steps = run(federation, schedule, split=window)
        assert steps.tolist() == [2, 1, 0, 1, 1]
        seen.append([[i for step in client for i in step[0]] for client in walked(done)])
    assert seen[0] == parts
    assert [sorted(client) for client in seen[1]] == parts and seen[1] != parts


def facts(carry, batch, rng, broadcast, client):
    """Sums up all arguments of a step."""
    told = jnp.stack(
        [client.row, client.id, client.size, client.num_steps, client.step,
         client.class_counts.sum(), client.operand]
    )  # fmt: skip
    drawn = carry["drawn"].at[client.step].set(jax.random.uniform(rng))
    return {"told": told, "sum": carry["sum"] + broadcast * batch.valid.sum(), "drawn": drawn}


def facts_under(execution):
    begin = {"told": jnp.full(7, -1, jnp.int32), "sum": jnp.float32(0.5), "drawn": jnp.zeros(STEPS)}
    options = {"operands": 10 * ROWS, "broadcast": jnp.float32(2)}
    return run(numbered(execution), EPOCHS, carry=Broadcast(begin), step=facts, **options)[0]


def test_what_a_step_is_told_and_a_shared_carry():
    done = facts_under("2")
    # The last step's: row, id, size, steps, number of the step, training samples, operand.
    assert done["told"].tolist() == [
        [0, 40, 7, 4, 3, 7, 0],
        [1, 10, 3, 2, 1, 3, 10],
        [-1] * 7,
        [3, 20, 10, 6, 5, 10, 30],
        [4, 0, 4, 2, 1, 4, 40],
    ]
    np.testing.assert_array_equal(done["sum"], 0.5 + 4 * np.array(SIZES))


def test_finish_sees_the_last_carry_and_the_number_of_steps():
    @jax.jit
    def finished(federation):
        return run_clients(
            federation,
            lambda carry, *_: carry + 1,
            jnp.zeros(5),
            rows=ROWS,
            key=KEY,
            schedule=EPOCHS,
            finish=lambda carry, client: (10 * carry, client.step, client.id),
        )

    (carry, step, ids), _, steps = finished(numbered())
    np.testing.assert_array_equal(steps, step)
    np.testing.assert_array_equal(carry, [40, 20, 0, 60, 20])
    np.testing.assert_array_equal(step, [4, 2, 0, 6, 2])
    np.testing.assert_array_equal(ids, IDS)


def explode(carry, batch, rng, broadcast, client):
    bad = (client.row == 3) & (client.step == 1) | (client.row == 0) & (client.step == 3)
    return {"w": carry["w"] + jnp.where(bad, jnp.array(jnp.inf), 1), "n": carry["n"] + 1}


def test_lanes_that_end_not_finite_get_back_what_they_began_with():
    carry = {"w": jnp.arange(5.0), "n": 100 * ROWS}
    done, finite, steps = run(numbered("2"), EPOCHS, carry=carry, step=explode)
    np.testing.assert_array_equal(finite, [False, True, True, False, True])
    np.testing.assert_array_equal(steps, [4, 2, 0, 6, 2])  # also of those that were in vain
    np.testing.assert_array_equal(done["w"], [0, 3, 2, 3, 6])
    np.testing.assert_array_equal(done["n"], [0, 102, 200, 300, 402])


def test_randomness_of_steps_depends_on_client_and_step_alone():
    drawn = [facts_under(execution)["drawn"] for execution in ("map", "2")]
    np.testing.assert_array_equal(*drawn)
    values = drawn[0][drawn[0] > 0]
    assert len(values) == 14 == len(set(values.tolist()))


@pytest.mark.parametrize("sizes", [SIZES, pytest.param((6,) * 5, marks=pytest.mark.costly)])
def test_epochs_of_each_client(sizes):
    """The first ones of the schedule's, also where all clients have equally many samples."""
    federation, schedule = numbered(sizes=sizes), Schedule(3, batch_size=4, drop_last=True)
    epochs = np.array([1, 3, 2, 2, 0])
    done, _, steps = run(federation, schedule, epochs=jnp.array(epochs))
    np.testing.assert_array_equal(steps, epochs * (np.array(sizes) // 4))
    every = wanted(federation, schedule)
    assert walked(done) == [client[:k] for client, k in zip(every, steps, strict=True)]
