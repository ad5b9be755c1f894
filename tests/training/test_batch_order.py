"""Batches in a fixed order: class after class, and a round continues where the last one ended."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Broadcast, InputError
from fedjax_pfl.federation.participation_options import ParticipationOptions
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.training import batch_indices
from fedjax_pfl.utils import keys
from tests.algorithms.harness import TwoLayers
from tests.references import fedavg, local
from tests.references.setting import Setting

ROUNDS = 6
STEPS = 2
LATE = {1: 1, 3: 2}


pytestmark = pytest.mark.usefixtures("double_precision")


def federation(order="by_class", **options):
    return toy_federation(model=TwoLayers(), batch_order=order, local_steps=STEPS, **options)


def lists(fed):
    """Training samples of each client, in the order of the batches."""
    data = jax.device_get(fed.data)
    ends = data.train.offset + data.train.size
    return [data.train.index[a:b].tolist() for a, b in zip(data.train.offset, ends, strict=True)]


class Loader:
    """A loader as a loop would have it: batches of 4 in order, from the start once it runs out."""

    def __init__(self, samples):
        self.samples, self.at = samples, 0

    def batch(self):
        if self.at >= len(self.samples):
            self.at = 0
        self.at += 4
        return np.array(self.samples[self.at - 4 : self.at])


def loaded(fed, starts):
    """batches[t][i] of loaders kept over rounds; `starts[t][i]`: whether the client draws."""
    loaders = [Loader(part) for part in lists(fed)]
    return [
        [
            [one.batch() for _ in range(STEPS)] if on else []
            for one, on in zip(loaders, row, strict=True)
        ]
        for row in starts
    ]


def starts_of(fed):
    cohorts = [fed.participation.cohort(jax.random.key(0), t, fed.data.ids) for t in range(ROUNDS)]
    return cohorts, [np.asarray(cohort.starts).tolist() for cohort in cohorts]


def setting(fed, batches, cohorts):
    data = jax.device_get(fed.data)
    model = fed.initial_model(keys.derive(jax.random.key(0), "init"))
    return Setting(
        initial=jax.tree.map(np.asarray, model["params"]),
        clients=[{} for _ in range(fed.num_clients)],
        rounds=ROUNDS,
        x=np.asarray(data.samples, np.float64),
        y=data.labels,
        sizes=data.train.size,
        cohorts=cohorts,
        batches=batches,
        learning_rate=[0.3] * ROUNDS,
    )


def test_samples_come_class_after_class_and_stay_in_order_within_one():
    plain, class_sorted = federation("partition"), federation("by_class")
    assert not class_sorted.schedule.shuffle and not plain.schedule.shuffle
    assert federation("shuffled").schedule.shuffle
    labels = np.asarray(plain.data.labels)
    assert all(part == sorted(part) for part in lists(plain))
    for before, after in zip(lists(plain), lists(class_sorted), strict=True):
        met = list(dict.fromkeys(labels[after].tolist()))
        assert after == [i for c in met for i in before if labels[i] == c]
    assert lists(class_sorted) != lists(plain)
    for split in ("validation", "test"):
        assert_close(class_sorted.data.split(split), plain.data.split(split), split, 0)


def test_every_client_has_its_classes_in_an_order_of_its_own():
    """Else all would meet the same classes in the same round; the permanent id decides."""
    labels = np.tile(np.repeat(np.arange(10), 3), 20)
    index, offsets = np.arange(600), np.arange(0, 601, 30)

    def firsts(ids):
        after = pfl.data.federated.by_class(index, offsets, labels, ids, 10).reshape(20, 30)
        assert (np.sort(after, axis=1) == index.reshape(20, 30)).all()
        assert (np.diff(after.reshape(20, 10, 3), axis=2) == 1).all()  # in order within a class
        return labels[after].reshape(20, 10, 3)[:, :, 0]

    met = firsts(np.arange(20))
    assert len({tuple(row) for row in met}) == 20 and len(set(met[:, 0])) > 5
    order = np.random.default_rng(1).permutation(20)
    np.testing.assert_array_equal(firsts(order), met[order])


def test_clients_without_samples_have_no_class():
    offsets, labels = [0, 3, 3, 5], np.array([2, 0, 2, 1, 1])
    index = np.array([5, 2, 9, 4, 7])
    after = pfl.data.federated.by_class(index, offsets, labels, np.arange(3), 3)
    assert after[:3].tolist() in ([2, 5, 9], [5, 9, 2]) and after[3:].tolist() == [4, 7]


@pytest.mark.costly
@pytest.mark.parametrize("schedule", ["code", "paper"])
def test_fedavg_with_stragglers_goes_on_where_loaders_stopped(schedule):
    """Late clients start, and draw, in rounds whose upload is dropped."""
    fed = federation(stragglers=LATE, straggler_schedule=schedule)
    cohorts, starts = starts_of(fed)
    assert not all(map(all, starts))
    batches = loaded(fed, starts)
    split = jax.device_get(fed.data.train)
    for t, cohort in enumerate(cohorts):
        for i in np.flatnonzero(starts[t]):
            cursor = int(cohort.earlier_starts[i]) * STEPS
            steps = batch_indices(fed.schedule, split, jax.random.key(t), i, i, cursor)
            assert [s[0].tolist() for s in steps] == [b.tolist() for b in batches[t][i]]
    members = [np.flatnonzero(cohort.mask).tolist() for cohort in cohorts]
    wanted = fedavg.run(setting(fed, batches, members))
    states = states_of(pfl.make_algorithm("fedavg"), fed, ROUNDS)
    for t, (state, models) in enumerate(zip(states[1:], wanted, strict=True)):
        assert_close(state.server["params"], models["global"], f"round {t}")


def test_clients_without_a_server_train_in_every_round():
    fed = federation(stragglers=LATE)
    batches = loaded(fed, [[True] * 5] * ROUNDS)
    wanted = local.run(setting(fed, batches, [range(5)] * ROUNDS))
    states = states_of(pfl.make_algorithm("local"), fed, ROUNDS)
    for state, models in zip(states[1:], wanted, strict=True):
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *models["personalized"])
        assert_close(state.models["params"], stacked, "local")


WAYS = {  # in which an algorithm may see its cohort
    "as it is": lambda cohort, t: cohort,
    "dropping late uploads": lambda cohort, t: cohort.dropping_late(),
    "on the paper's cycle": lambda cohort, t: cohort.on_schedule(t, "paper"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("schedule", ["code", "paper"])
def test_earlier_starts_count_the_starts(schedule, way):
    part = ParticipationOptions(1.0, {1: 1, 2: 2, 4: 5}, schedule).build(5)

    def cohort(t):
        return WAYS[way](part.cohort(jax.random.key(0), t, jnp.arange(5)), t)

    rows = jax.jit(jax.vmap(cohort))(jnp.arange(40))
    earlier = np.cumsum(rows.starts, axis=0) - np.asarray(rows.starts)
    np.testing.assert_array_equal(rows.earlier_starts, earlier)
    assert (earlier[-1] > 0).all()


def context(fed, t):
    key = jax.random.key(0)
    cohort = fed.participation.cohort(key, jnp.int32(t), fed.data.ids)
    return pfl.Context(fed, key, jnp.int32(t), jnp.int32(9), cohort)


def seen(fed, t, split="train", **options):
    """Labels of the samples that each client meets in round t."""
    return _seen(fed, jnp.int32(t), options, split).tolist()


@partial(jax.jit, static_argnames="split")
def _seen(fed, t, options, split):
    def note(log, batch, rng, broadcast, client):
        labels = jnp.where(batch.valid, batch.labels, -1)
        return log.at[client.step, : len(labels)].set(labels)

    log = jnp.full((5, STEPS, 4), -1)
    return context(fed, t).run_clients(note, log, split=split, **options)[0]


@pytest.mark.costly
def test_run_clients_goes_on_as_well_for_the_cohort_alone():
    fed = federation()
    assert seen(fed, 0) != seen(fed, 1)
    assert seen(fed, 1, cursor=jnp.zeros(5, jnp.int32)) == seen(fed, 0)
    assert seen(fed, 1, rows=jnp.arange(5)) == seen(fed, 0)
    assert seen(fed, 1, split="validation") == seen(fed, 0, split="validation")


def test_run_clients_leaves_out_those_who_are_late():
    labels = np.array(seen(federation(stragglers=LATE), 0))
    met = (labels >= 0).any(axis=(1, 2))
    assert met.tolist() == [i not in LATE for i in range(5)]


@pytest.mark.costly
def test_new_clients_begin_at_their_first_batch():
    fed = federation()
    algorithm = pfl.make_algorithm("fedavg")

    @jax.jit
    def models(fed):
        """(as they are personalized, trained from the first batch, from that of round 7)."""
        ctx = context(fed, 7)
        state = algorithm.init(ctx)
        train = partial(ctx.train, Broadcast(state.server), ctx.cohort_of(), "personalize")
        begun = train(cursor=jnp.zeros(5, int)).models
        return algorithm.personalize(ctx, state, ctx.of_new_clients()), begun, train().models

    got, wanted, later = models(fed)
    assert_close(got, wanted, "new_clients", 0)
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (got, later)), strict=True))


def test_batch_order_refusals():
    with pytest.raises(InputError, match="Did you mean 'by_class'"):
        federation("classes")
    with pytest.raises(InputError, match=r"'by_class' needs a participation of 1, got 0\.6"):
        federation(participation=0.6)
    assert federation("shuffled", participation=0.6).participation.cohort_size == 3


@pytest.mark.costly
def test_a_full_gradient_has_every_sample_whatever_the_order_of_training():
    @jax.jit
    def gradients(fed):
        zero = jnp.int32(0)
        ctx = pfl.core.Context(fed, jax.random.key(0), zero, zero + 1, None)
        models = ctx.replicate(fed.initial_model(jax.random.key(0)))
        return ctx.full_gradient(models, ctx.cohort_of())[0]

    wanted = gradients(federation("shuffled"))
    for order in ("fresh", "poisson"):
        assert_close(gradients(federation(order)), wanted, order)
    augmented = federation("shuffled", augment=lambda key, samples: samples + 1)
    assert_close(gradients(augmented), wanted, "samples without augmentation")


def test_empty_minibatches_are_not_in_the_mean_loss():
    fed = toy_federation(batch_order="poisson", batch_size=1, local_steps=20, learning_rate=0.0)

    @jax.jit
    def loss(fed):
        zero = jnp.int32(0)
        ctx = pfl.core.Context(fed, jax.random.key(0), zero, zero + 1, None)
        model = jax.tree.map(jnp.zeros_like, fed.initial_model(jax.random.key(0)))
        return ctx.train(Broadcast(model), ctx.cohort_of()).loss

    assert_close(loss(fed), np.full(5, np.log(3)), "of three equal logits")
