"""Schedules as plain functions: numbers of steps, orders, positions, ranges."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import InputError
from fedjax_pfl.data.federated import make_split
from fedjax_pfl.federation.batching import COUNT_LIMIT, MAX_STEPS, order_key
from fedjax_pfl.training import Schedule, batch_indices

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("schedule", "steps"),  # of clients with 0, 1, 9, 10, 11 and 25 samples
    [
        (Schedule(), [0, 1, 1, 1, 2, 3]),
        (Schedule(epochs=3), [0, 3, 3, 3, 6, 9]),
        (Schedule(drop_last=True), [0, 0, 0, 1, 1, 2]),
        (Schedule(steps=4), [0, 4, 4, 4, 4, 4]),
        (Schedule(steps=4, drop_last=True), [0, 0, 0, 4, 4, 4]),
        (Schedule(batches_per_step=2), [0, 1, 1, 1, 1, 2]),
        (Schedule(batches_per_step=2, drop_last=True), [0, 0, 0, 0, 0, 1]),
        (Schedule(epochs=0), [0] * 6),
        (Schedule(steps=0), [0] * 6),
    ],
)
def test_number_of_steps(schedule, steps):
    sizes = [0, 1, 9, 10, 11, 25]
    assert [schedule.total_steps(size) for size in sizes] == steps
    np.testing.assert_array_equal(schedule.total_steps(jnp.array(sizes)), steps)


def test_order_is_a_permutation_of_the_clients_samples_first():
    order = np.asarray(Schedule().order(KEY, 6, 10))
    assert sorted(order[:6]) == list(range(6)) and sorted(order) == list(range(10))
    assert (order[:6] != np.arange(6)).any()
    other = Schedule().order(jax.random.key(1), 6, 10)
    assert (np.asarray(other)[:6] != order[:6]).any()


@pytest.mark.parametrize("capacity", [6, 7, 100, 1001])
def test_order_does_not_depend_on_the_largest_client(capacity):
    first = np.asarray(Schedule().order(KEY, 6, 6))
    np.testing.assert_array_equal(np.asarray(Schedule().order(KEY, 6, capacity))[:6], first)
    assert sorted(first) == list(range(6))


def test_orders_are_uniform():
    keys = jax.random.split(KEY, 600)
    orders = jax.jit(jax.vmap(lambda key: Schedule().order(key, 3, 5)))(keys)
    _, counts = np.unique(np.asarray(orders)[:, :3], axis=0, return_counts=True)
    assert len(counts) == 6 and counts.min() > 60 and counts.max() < 140  # 100 expected


def test_unshuffled_walks_keep_the_order_of_the_partition():
    split = make_split(np.array([9, 8, 7, 6, 5, 4]), np.array([0, 1, 6]))
    steps = batch_indices(Schedule(batch_size=2, shuffle=False), split, KEY, 0, 1)
    assert [step[0].tolist() for step in steps] == [[8, 7], [6, 5], [4]]
    schedule = Schedule(steps=2, batch_size=2, shuffle=False)
    steps = batch_indices(schedule, split, KEY, 0, 1, cursor=2)
    assert [step[0].tolist() for step in steps] == [[4], [8, 7]]


def test_positions():
    schedule = Schedule(batch_size=2, batches_per_step=2)
    at, valid = schedule.positions(jnp.array([3, 1, 4, 0, 2]), 1, 5)
    assert np.asarray(at)[np.asarray(valid)].tolist() == [2]
    np.testing.assert_array_equal(valid, [[True, False], [False, False]])


@pytest.mark.parametrize(
    ("batches", "size", "wanted"),
    [
        (1, 2, [[0, 1]]),
        (2, 2, [[0], [1]]),
        (2, 5, [[0, 1, 2], [3, 4]]),
        (2, 9, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (3, 4, [[0, 1], [2], [3]]),
        (3, 7, [[0, 1, 2], [3, 4], [5, 6]]),
        (3, 1, [[0], [], []]),
        (3, 8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
    ],
)
def test_batches_of_an_incomplete_step_are_of_even_size(batches, size, wanted):
    schedule = Schedule(batch_size=4, batches_per_step=batches)
    at, valid = map(np.asarray, schedule.positions(jnp.arange(9), 0, size))
    result = [row[on].tolist() for row, on in zip(at, valid, strict=True)]
    assert result == wanted


def test_fresh_batches_are_the_first_of_an_order_of_their_own():
    """As many steps as otherwise; with replacement from step to step, without within one."""
    split, key = make_split(np.arange(10, 17), np.array([0, 7])), jax.random.fold_in(KEY, 3)
    schedule = Schedule(epochs=30, batch_size=4, fresh=True)
    (walk,) = zip(*batch_indices(schedule, split, KEY, 0, 0), strict=True)
    assert len(walk) == 60 and {len(set(batch.tolist())) for batch in walk} == {4}
    assert any(
        set(a.tolist()) & set(b.tolist()) for a, b in zip(walk[::2], walk[1::2], strict=True)
    )
    drawn = np.bincount(np.concatenate(walk) - 10)
    assert drawn.min() > 20 and drawn.max() < 50  # 34 expected
    order = schedule.order(order_key(KEY, 0, 5), 7, 7)
    np.testing.assert_array_equal(walk[5], 10 + np.asarray(order)[:4])
    short = batch_indices(Schedule(batch_size=9, fresh=True), split, key, 0, 0)
    assert [sorted(batch.tolist()) for (batch,) in short] == [list(range(10, 17))]


def test_batch_indices_of_clients_without_a_step():
    split = make_split(np.arange(3), np.array([0, 0, 3]))
    assert batch_indices(Schedule(), split, KEY, 0, 0) == []
    assert batch_indices(Schedule(drop_last=True), split, KEY, 0, 1) == []


def test_batches_are_no_larger_than_the_largest_client():
    assert Schedule(epochs=2, batch_size=100).fitting(7) == Schedule(epochs=2, batch_size=7)
    assert Schedule(batch_size=5).fitting(7) == Schedule(batch_size=5)
    for other in (
        Schedule(batch_size=90, drop_last=True),
        Schedule(batch_size=90, batches_per_step=2),
        Schedule(batch_size=90, batches_per_step=3, drop_last=True),
    ):
        fitted = other.fitting(7)
        assert fitted.batch_size <= 8
        firsts = [
            jax.jit(jax.vmap(partial(s.positions, jnp.arange(7), 0)))(jnp.arange(8))
            for s in (fitted, other)
        ]
        for size in range(8):
            assert fitted.total_steps(size) == other.total_steps(size)
            (at, valid), (wide, there) = ([np.asarray(x)[size] for x in first] for first in firsts)
            assert valid.sum(axis=1).tolist() == there.sum(axis=1).tolist()
            np.testing.assert_array_equal(at[valid], wide[there])


def test_steps_that_int32_can_not_count():
    Schedule(steps=MAX_STEPS).check_counts(7)
    Schedule(epochs=MAX_STEPS // 3, batch_size=3).check_counts(7)
    for schedule in (
        Schedule(steps=MAX_STEPS + 1),
        Schedule(epochs=1431655766, batch_size=3),  # times 3 it is 2 modulo 2^32
        Schedule(epochs=MAX_STEPS // 3 + 1, batch_size=3),
    ):
        with pytest.raises(InputError, match=rf"local steps in a round, but at most {MAX_STEPS:,}"):
            schedule.check_counts(7)
    Schedule(epochs=5, shuffle=False).check_counts(10, COUNT_LIMIT // 5)
    Schedule(epochs=5).check_counts(10, COUNT_LIMIT - 1)  # these do not go on where they stopped
    with pytest.raises(InputError, match=r"in 429,496,730 rounds, but unshuffled batches can be"):
        Schedule(epochs=5, shuffle=False).check_counts(10, COUNT_LIMIT // 5 + 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "local_epochs must be a whole number of at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"steps": -1}, "local steps must be a whole number of at least 0, got -1"),
        ({"batches_per_step": 4}, "batches_per_step must be 1, 2 or 3, got 4"),
    ],
)
def test_validate(options, message):
    with pytest.raises(InputError, match=message):
        Schedule(**options).validate()


@pytest.mark.parametrize(
    "options", [{"epochs": 1.5}, {"batch_size": 2.5}, {"steps": 1.5}, {"batches_per_step": []}]
)
def test_validate_refuses_fractions(options):
    with pytest.raises(InputError):
        Schedule(**options).validate()


def test_poisson_batches_have_each_sample_independently():
    """Sizes are binomial, and whoever has at most B samples has all of them in each batch."""
    sizes, capacity, B = np.array([40, 3, 10]), 40, 10
    schedule = Schedule(epochs=1, batch_size=B, poisson=True)
    assert schedule.total_steps(40) == 4 and schedule.slots(capacity) == 10 + 17  # 6 sqrt(7.5)
    assert Schedule(batch_size=B).slots(capacity) == B

    @jax.jit
    def batches(keys, size):
        def one(key):
            order = schedule.order(key, size, capacity)
            drawn = schedule.drawn(key, size, capacity)
            at, valid = schedule.positions(order, 0, drawn)
            return jnp.zeros(capacity, int).at[at[0]].add(valid[0])  # how often each sample is in

        return jax.vmap(one)(keys)

    keys = jax.random.split(KEY, 4000)
    for size in sizes:
        taken = np.asarray(batches(keys, size))
        assert taken.max() == 1 and not taken[:, size:].any()
        rate = min(1, B / size)
        spread = 5 * np.sqrt(rate * (1 - rate) / len(keys))
        np.testing.assert_allclose(taken[:, :size].mean(axis=0), rate, atol=spread + 1e-12)
        counts = taken.sum(axis=1)
        np.testing.assert_allclose(counts.var(), size * rate * (1 - rate), rtol=0.1, atol=1e-9)
        pairs = np.cov(taken[:, :size].T)[np.triu_indices(size, 1)]  # negative with a fixed size
        assert abs(pairs.mean()) <= 5 * rate * (1 - rate) / np.sqrt(len(keys) * len(pairs))


def test_poisson_batches_are_new_in_each_step():
    split = make_split(np.arange(10, 50), np.array([0, 40]))
    walk = batch_indices(Schedule(epochs=2, batch_size=10, poisson=True), split, KEY, 0, 0)
    sizes = [len(batch) for (batch,) in walk]
    assert len(walk) == 8 and len(set(sizes)) > 3 and 6 < np.mean(sizes) < 14


def test_poisson_draws_one_batch_in_a_step():
    with pytest.raises(InputError, match="batches_per_step must be 1 with batch_order 'poisson'"):
        Schedule(poisson=True, batches_per_step=2).validate()
