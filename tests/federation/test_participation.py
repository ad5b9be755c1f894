"""Participation: sampling, stragglers' tables written out, and the masks of a cohort."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import Context, InputError
from fedjax_pfl.federation.participation import Cohort, Participation
from fedjax_pfl.federation.participation_options import ParticipationOptions
from fedjax_pfl.testing.toys import toy_federation

KEY = jax.random.key(3)
IDS = jnp.arange(10)


def cohorts(part: Participation, rounds: int, ids=IDS, key=KEY):
    """Cohorts of all rounds, leaves [rounds, M]."""
    return _cohorts(part, jnp.arange(rounds), ids, key)


@jax.jit
def _cohorts(part, rounds, ids, key):
    return jax.vmap(lambda t: part.cohort(key, t, ids))(rounds)


def test_samples_are_distinct_ascending_and_of_the_right_number():
    rows = np.asarray(cohorts(ParticipationOptions(0.3).build(10), 400).rows)
    assert rows.shape == (400, 3)
    assert (np.diff(rows, axis=1) > 0).all() and rows.min() >= 0 and rows.max() <= 9
    counts = np.bincount(rows.ravel(), minlength=10)
    assert counts.min() > 80 and counts.max() < 160  # 120 expected, standard deviation 9


def test_sampling_is_a_function_of_key_and_round():
    part = ParticipationOptions(0.3).build(10)
    rows = np.asarray(cohorts(part, 20).rows)
    np.testing.assert_array_equal(cohorts(part, 20).rows, rows)
    assert (np.asarray(cohorts(part, 20, key=jax.random.key(4)).rows) != rows).any()
    assert len({tuple(row) for row in rows}) > 10


def test_the_same_clients_are_sampled_wherever_their_rows_are():
    part, order = ParticipationOptions(0.4).build(10), np.array([7, 2, 9, 0, 4, 1, 8, 3, 6, 5])
    there, here = cohorts(part, 20), cohorts(part, 20, ids=jnp.asarray(order))
    np.testing.assert_array_equal(np.sort(here.ids, 1), np.sort(there.ids, 1))
    np.testing.assert_array_equal(here.ids, order[np.asarray(here.rows)])


@pytest.mark.parametrize(
    ("count", "fraction", "size"),
    [(10, 1.0, 10), (10, 0.01, 1), (10, 0.25, 3), (10, 0.35, 4), (100, 0.29, 29), (1, 0.2, 1)],
)
def test_cohort_sizes_round_half_up(count, fraction, size):
    assert ParticipationOptions(fraction).build(count).cohort_size == size


TABLES = {
    # schedule, delay: rounds of one cycle: clients that start, arrive, are in step, and the
    # staleness.
    ("code", 1): ("101", "011", "001", "x10"),
    ("code", 2): ("1001", "0011", "0001", "xx20"),
    ("code", 3): ("10001", "00011", "00001", "xxx30"),
    ("paper", 1): ("10", "01", "00", "x1"),
    ("paper", 2): ("100", "001", "000", "xx2"),
    ("paper", 3): ("1000", "0001", "0000", "xxx3"),
}


@pytest.mark.parametrize(("schedule", "delay"), TABLES)
def test_straggler_tables(schedule, delay):
    part = ParticipationOptions(1.0, {1: delay}, schedule).build(2)
    rows = cohorts(part, 20, ids=jnp.arange(2))
    for name, row in zip(("starts", "arrives", "mask"), TABLES[schedule, delay], strict=False):
        wanted = (row * 20)[:20]
        assert "".join(str(int(x)) for x in getattr(rows, name)[:, 1]) == wanted, name
        assert np.asarray(getattr(rows, name))[:, 0].all(), name
    stale = (TABLES[schedule, delay][3] * 20)[:20]
    for t, wanted in enumerate(stale):
        assert wanted == "x" or int(rows.staleness[t, 1]) == int(wanted)
    assert not np.asarray(rows.staleness)[:, 0].any()
    np.testing.assert_array_equal(rows.delay[0], [0, delay])


DROPPING = {
    # If late uploads are dropped: clients that start and arrive, in rounds of one cycle.
    ("code", 1): ("011", "001"),
    ("code", 3): ("00011", "00001"),
    ("paper", 2): ("001", "000"),
}


@pytest.mark.parametrize(("schedule", "delay"), DROPPING)
def test_dropping_late_uploads(schedule, delay):
    part = ParticipationOptions(1.0, {1: delay}, schedule).build(2)
    rows = cohorts(part, 20, ids=jnp.arange(2)).dropping_late()
    for name, row in zip(("starts", "arrives"), DROPPING[schedule, delay], strict=True):
        seen = "".join(str(int(x)) for x in getattr(rows, name)[:, 1])
        assert seen == (row * 20)[:20], name
        assert np.asarray(getattr(rows, name))[:, 0].all(), name


@pytest.mark.parametrize("schedule", ["code", "paper"])
def test_another_schedule_is_that_schedules_cohort(schedule):
    late = {1: 1, 2: 2, 4: 5}
    other, part = (ParticipationOptions(1.0, late, s).build(5) for s in ("paper", schedule))
    see = jax.jit(jax.vmap(lambda t: part.cohort(KEY, t, IDS[:5]).on_schedule(t, "paper")))
    found, wanted = see(jnp.arange(20)), cohorts(other, 20, ids=IDS[:5])
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), found, wanted))
    sampled = jax.tree.map(lambda leaf: leaf[3], cohorts(ParticipationOptions(0.3).build(10), 20))
    np.testing.assert_array_equal(sampled.on_schedule(3, "paper").earlier_starts, [0, 0, 0])


def test_flushing_sends_what_is_on_its_way():
    """Delay 3 in a cycle of 5: phases 1 and 2 wait; 0 began just now, 3 and 4 arrive anyway."""
    rows = cohorts(ParticipationOptions(1.0, {1: 3}).build(2), 5, ids=jnp.arange(2))
    flushed = rows.flushed(jnp.ones((5, 1), bool))
    np.testing.assert_array_equal(flushed.arrives[:, 1], [False, True, True, True, True])
    np.testing.assert_array_equal(flushed.staleness[1:, 1], [1, 2, 3, 0])
    assert np.asarray(flushed.arrives)[:, 0].all() and not np.asarray(flushed.staleness)[:, 0].any()
    same = rows.flushed(jnp.zeros((5, 1), bool))
    np.testing.assert_array_equal(same.arrives, rows.arrives)
    np.testing.assert_array_equal(same.staleness, rows.staleness)


def test_who_is_there_in_a_round():
    """Rounds are counted from 1 in options; a client is there in the round of its departure."""
    part = ParticipationOptions(arrivals={1: 2, 2: 3}, departures={0: 1, 1: 3}).build(3)
    there = ["".join(str(int(one)) for one in part.present(t)) for t in range(4)]
    assert there == ["100", "010", "011", "001"]


def test_stragglers_and_sampling_exclude_each_other():
    with pytest.raises(InputError, match=r"Stragglers need a participation of 1, got 0\.5"):
        ParticipationOptions(0.5, {3: 2}).checked()


def some(rows=(1, 3, 4), mask=(True, False, True), count=5):
    """A cohort of three of five clients, the middle one absent."""
    part = ParticipationOptions(len(rows) / count).build(count)
    first = cohorts(part, 1, jnp.arange(count))
    cohort = jax.tree.map(lambda leaf: leaf[0], first)
    return replace(cohort, rows=jnp.array(rows), ids=jnp.array(rows), mask=jnp.array(mask))


scatter, expand = jax.jit(Cohort.scatter), jax.jit(Cohort.expand)


def test_gather_and_scatter():
    stack = {"a": jnp.arange(10.0).reshape(5, 2), "b": jnp.arange(5)}
    cohort = some()
    seen = cohort.gather(stack)
    np.testing.assert_array_equal(seen["b"], [1, 3, 4])
    values = {"a": -jnp.ones((3, 2)), "b": jnp.full(3, 7)}
    put = scatter(cohort, stack, values)
    np.testing.assert_array_equal(put["b"], [0, 7, 2, 3, 7])
    np.testing.assert_array_equal(put["a"][:, 0], [0, -1, 4, 6, -1])
    put = scatter(cohort, stack, values, where=jnp.array([False, True, False]))
    np.testing.assert_array_equal(put["b"], [0, 1, 2, 7, 4])
    with pytest.raises(InputError, match="must be int32, as its rows are"):
        cohort.scatter(stack, {"a": values["a"], "b": jnp.full(3, 0.5)})
    with pytest.raises(InputError, match="written to a stack"):
        cohort.scatter_pairs(jnp.eye(5, dtype=int), jnp.full((3, 3), 0.5))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scatter_refuses_rows_that_are_not_finite(bad):
    stack = {"a": jnp.zeros((5, 2)), "b": jnp.zeros(5)}
    values = {"a": jnp.ones((3, 2)).at[2, 0].set(bad), "b": jnp.ones(3)}
    put = scatter(some(), stack, values)
    np.testing.assert_array_equal(put["b"], [0, 1, 0, 0, 0])
    np.testing.assert_array_equal(put["a"].sum(1), [0, 2, 0, 0, 0])


@pytest.mark.costly
def test_one_member_at_a_time():
    part, stack = ParticipationOptions(stragglers={1: 1}).build(5), np.arange(10.0).reshape(5, 2)

    @jax.jit
    def member(k):
        one = part.cohort(KEY, jnp.int32(0), IDS[:5]).member(k)
        assert (one.size, one.num_clients, one.in_place) == (1, 5, False)
        own = one.gather(jnp.asarray(stack))
        return one.ids, one.mask, own, one.scatter(jnp.asarray(stack), jnp.full((1, 2), -1.0))

    for k in range(5):
        ids, mask, own, put = member(k)
        assert ids.tolist() == [k] and mask.tolist() == [k != 1]
        np.testing.assert_array_equal(own, stack[k : k + 1])
        wanted = np.where((np.arange(5) == k)[:, None] & (k != 1), -1.0, stack)
        np.testing.assert_array_equal(put, wanted)
    assert ParticipationOptions().build(1).cohort(KEY, jnp.int32(0), IDS[:1]).member(0).size == 1


def test_an_order_of_the_members_is_their_ids_order():
    rows = jnp.array([3, 0, 4, 1, 2])
    plain, moved = (
        ParticipationOptions().build(5).cohort(KEY, jnp.int32(0), ids) for ids in (IDS[:5], rows)
    )
    order = plain.order(KEY)
    assert sorted(order.tolist()) == list(range(5)) and order.tolist() != list(range(5))
    np.testing.assert_array_equal(moved.ids[moved.order(KEY)], plain.ids[order])
    orders = {tuple(plain.order(jax.random.key(k)).tolist()) for k in range(10)}
    assert len(orders) > 5


def test_keep_moves_members_from_the_mask_to_the_diverged():
    cohort = some().mark_diverged(jnp.array([False, True, True]))
    np.testing.assert_array_equal(cohort.mask, [False, False, True])
    np.testing.assert_array_equal(cohort.diverged, [True, False, False])
    cohort = cohort.mark_diverged(jnp.array([True, True, False]))
    np.testing.assert_array_equal(cohort.diverged, [True, False, True])
    assert not np.asarray(cohort.mask).any()


def test_spread():
    cohort = some()
    np.testing.assert_array_equal(cohort.spread(jnp.array([5, 6, 7]), -1), [-1, 5, -1, 6, 7])
    spread = cohort.spread(jnp.ones((3, 2)), 0)
    np.testing.assert_array_equal(spread.sum(1), [0, 2, 0, 2, 2])


def test_expand():
    weights = jnp.array([[0.5, 0, 0.5], [1.0, 0, 0], [0, 0, 0]])
    wanted = np.eye(5)
    wanted[1] = [0, 0.5, 0, 0, 0.5]  # client 3 is absent; client 4 received nothing
    np.testing.assert_array_equal(expand(some(), weights), wanted)
    blocks = expand(some(), jnp.stack([weights, jnp.eye(3)]))
    np.testing.assert_array_equal(blocks, np.stack([wanted, np.eye(5)]))
    everyone = some((0, 1, 2), (True, True, True), 3)
    given = np.asarray(weights)[:1].repeat(3, 0)
    np.testing.assert_array_equal(expand(everyone, given), [[0.5, 0, 0.5]] * 3)


def everyone(rows):
    """`Context.cohort_of(rows)` among five clients."""
    return _everyone(toy_federation(dtype="float32"), rows)


@jax.jit
def _everyone(federation, rows):
    cohort = federation.participation.cohort(KEY, 0, federation.data.ids)
    return Context(federation, KEY, jnp.int32(0), jnp.int32(1), cohort).cohort_of(rows)


def test_everyone_of_some_rows():
    cohort = everyone(jnp.array([3, 1]))
    np.testing.assert_array_equal(cohort.gather(jnp.arange(5)), [3, 1])
    assert np.asarray(cohort.mask & cohort.starts & cohort.arrives & ~cohort.diverged).all()


def test_everyone_in_another_order_gathers_in_that_order():
    order = jnp.array([3, 0, 4, 1, 2])
    np.testing.assert_array_equal(everyone(order).gather(jnp.arange(5)), order)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participation": 0}, "participation must be a fraction"),
        ({"participation": 1.1}, "participation must be a fraction"),
        ({"stragglers": {10: 1}}, r"straggler must be a client in 0\.\.9, got 10"),
        ({"stragglers": {-1: 1}}, "straggler must be a client"),
        ({"stragglers": {3: 0}}, "delay of straggler 3 must be at least 1 round, and whole, got 0"),
        ({"straggler_schedule": "papr"}, "Did you mean 'paper'"),
        ({"straggler_schedule": "paper"}, "must be absent without stragglers, got 'paper'"),
    ],
)
def test_input_errors(options, message):
    with pytest.raises(InputError, match=message):
        ParticipationOptions(**options).checked().build(10)


def test_poisson_sampling_of_all_clients_is_noted():
    """A sweep of participations may have this one."""
    said = "Poisson sampling at a participation of 1 takes all clients in every round"
    assert ParticipationOptions(sampling="poisson").notes() == [said]
    assert ParticipationOptions(0.9, sampling="poisson").notes() == []


@pytest.mark.parametrize("given", [[3], "3:2", 1, True])
def test_stragglers_that_are_no_dict(given):
    with pytest.raises(InputError, match="stragglers must be a dict such as"):
        ParticipationOptions(1.0, given).checked().build(4)


@pytest.mark.parametrize("fraction", [0.6, 1.0])
def test_pairs_of_the_cohort(fraction):
    """What is known of pairs changes where both take part, and nowhere else."""
    pairs = jnp.arange(25.0).reshape(5, 5)
    part = ParticipationOptions(fraction).build(5)
    cohort = jax.tree.map(lambda leaf: leaf[0], cohorts(part, 1, jnp.arange(5)))
    rows = np.asarray(cohort.rows)
    there = cohort.gather_pairs({"loss": pairs})["loss"]
    np.testing.assert_array_equal(there, np.asarray(pairs)[np.ix_(rows, rows)])
    finite = jnp.arange(cohort.size) != 1
    after = cohort.mark_diverged(finite).scatter_pairs({"loss": pairs}, {"loss": -there - 1})[
        "loss"
    ]
    both = np.isin(np.arange(5), np.delete(rows, 1))
    expected = np.where(np.outer(both, both), -np.asarray(pairs) - 1, pairs)
    np.testing.assert_array_equal(after, expected)
