"""CFL against its reference, its bipartition, its thresholds, and the clusters of new clients."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.cfl import largest_between, second_halves
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.testing.toys import CAPACITY, SEEDS, run_rounds, states_of, toy_federation
from fedjax_pfl.training.local_sgd import Trained
from fedjax_pfl.utils import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    over,
    sampled_federation,
)
from tests.engine.finals import final_in
from tests.references import cfl
from tests.references.local_sgd import sgd
from tests.references.network import flat, loss_and_gradient, unflat

ALWAYS = {"mean_below": 1e9, "largest_above": 0.0, "first_split": 0}
SIZES = (7, 3, 1, 10, 4, 6, 5, 2, 8)
VARIANTS = {
    "tree": {"max_clusters": 5, "best_of_tree": True},
    "single": {"linkage": "single", "gamma_max": 0.5, "max_clusters": 3},
}
QUICK = [("partial-map", "tree"), ("full-vmap", "single")]


def algorithm(**settings):
    return pfl.make_algorithm("cfl", ALWAYS | settings)


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    settings = VARIANTS[variant]
    case = Case(train_sizes=SIZES, validation_size=2, **PATTERNS[pattern])
    common, everybody = case.common(), np.arange(len(SIZES))
    known = {name: settings[name] for name in settings if name != "best_of_tree"}
    wanted = cfl.run(case.initial(), case.clients(), 3, **common, **ALWAYS | known)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        count = len(models["models"])
        assert state.count == record["scalars"]["clusters"] == count
        np.testing.assert_array_equal(state.cluster, models["clusters"])
        used = jax.tree.map(lambda leaf, count=count: leaf[:count], state.models)
        assert_models(used, [models["models"][k] for k in range(count)], f"models of round {t}")
        assert_losses(record, case, "personalized", models["personalized"])
        if settings.get("best_of_tree"):
            best = [cfl.best_of_tree(models, i, validation_loss(case, i)) for i in everybody]
            assert_losses(record, case, "best_of_tree", best)
        present = np.isin(everybody, case.cohorts[t])
        before = wanted[t - 1]["clusters"] if t else [0] * len(SIZES)
        noted = record["clients"]
        for i in everybody:
            mean, largest = models["norms"].get(before[i], (np.nan, np.nan))
            np.testing.assert_allclose(noted["mean_norm"][i], mean if present[i] else np.nan, 1e-9)
            others = [noted["update_norm"][j] for j in case.cohorts[t] if before[j] == before[i]]
            np.testing.assert_allclose(max(others, default=np.nan), largest, 1e-9)
        same = np.equal.outer(models["clusters"], models["clusters"]) & present
        mixed = np.where(present[:, None], same / same.sum(1, keepdims=True).clip(1), np.eye(9))
        np.testing.assert_allclose(record["matrices"]["mixing"], mixed, 1e-9)
        now = np.where(present, models["clusters"], np.nan)
        np.testing.assert_array_equal(noted["cluster"], now)
        case.assert_whole_models(record, t)
        steps = [len(batches) for batches in common["batches"][t]]
        np.testing.assert_array_equal(noted["local_steps"], present * steps)
    assert count > 2 or pattern == "single"  # two clients are too few


def validation_loss(case, i):
    at = case.samples(i, "validation")
    return lambda model: loss_and_gradient(model, case.x[at], case.y[at])[0]


@dataclass(frozen=True)
class Forged(pfl.Context):
    """Local training that moves the members' models by `updates`, a stack of parameters."""

    updates: Any = None

    def train(self, models, *args, **options):
        moved = jax.tree.map(jnp.add, models["params"], self.updates)
        return Trained({"params": moved}, self.cohort, jnp.zeros(self.cohort.size))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "linkage", ["complete", pytest.param("single", marks=pytest.mark.thorough)]
)
def test_splits_of_forged_updates(linkage, monkeypatch):
    """Several clusters at once, more than there is room for, some that gamma_max keeps whole."""
    case = Case(train_sizes=SIZES, validation_size=2)
    like, everybody = case.initial(), range(len(SIZES))
    static = {"linkage": linkage, "max_clusters": 4, "best_of_tree": True}

    def context(kind=pfl.Context, t=0, cohort=None, **options):
        cohort = case.cohort(0) if cohort is None else cohort
        return kind(case.federation, case.key, t, jnp.int32(4), cohort, **options)

    @jax.jit
    def begun(chooser):
        return chooser.init(context())

    @jax.jit
    def advance(chooser, state, updates, mask, t):
        cohort = replace(case.cohort(0), mask=mask, complete=False)
        return chooser.round(context(Forged, t, cohort, updates=updates), state)[0]

    @jax.jit
    def scored(chooser, state):
        return chooser.models(context(), state, jnp.arange(len(SIZES)))["best_of_tree"]

    def forged(model, batches, x, y, rate):
        return unflat(flat(model) + batches, like)

    monkeypatch.setattr(cfl, "sgd", forged)
    sizes = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        moves = 0.3 * rng.normal(size=(4, len(SIZES), len(flat(like))))
        moves = np.round(moves) if seed % 5 == 0 else moves  # ties
        moves[rng.random((4, len(SIZES))) < 0.1] = 0
        present = rng.random((4, len(SIZES))) < rng.choice([0.6, 0.9, 1])
        traced = {
            "mean_below": 1.0,
            "largest_above": 1.5,
            "first_split": seed % 2,
            "gamma_max": (-1.0, 0.6, 0.65)[seed % 3],
        }
        wanted = cfl.run(
            like,
            [{}] * len(SIZES),
            4,
            x=None,
            y=None,
            cohorts=[np.flatnonzero(who).tolist() for who in present],
            batches=moves,
            learning_rate=[0] * 4,
            linkage=linkage,
            max_clusters=4,
            **traced | {"gamma_max": None if seed % 3 == 0 else traced["gamma_max"]},
        )
        chooser = algorithm(**static, **traced)
        state = begun(chooser)
        for t in range(4):
            updates = [unflat(move, like) for move in moves[t]]
            updates = jax.tree.map(lambda *leaves: np.stack(leaves), *updates)
            state = advance(chooser, state, updates, present[t], t)
            models = wanted[t]["models"]
            count = len(models)
            np.testing.assert_array_equal(state.cluster, wanted[t]["clusters"], f"{seed}, {t}")
            used = jax.tree.map(lambda leaf, count=count: leaf[:count], state.models)
            assert_models(used, [models[k] for k in range(count)], "models")
            assert state.count == count
            sizes.append(count)
        best = [cfl.best_of_tree(wanted[-1], i, validation_loss(case, i)) for i in everybody]
        assert_models(scored(chooser, state), best, "best of the tree")
    assert set(sizes) == {1, 2, 3, 4}


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_bipartition(linkage):
    """Of random clusters with absent clients, ties and updates of zero, in any order."""
    halves = jax.jit(second_halves, static_argnames="linkage")
    between = jax.jit(largest_between)
    cuts = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        vectors = rng.normal(size=(9, 3))
        vectors = np.round(vectors) if seed % 2 else vectors
        lengths = np.linalg.norm(vectors, axis=1)
        unit = vectors / np.where(lengths > 0, lengths, 1)[:, None]
        cosines, ids = np.round(unit @ unit.T, 12), rng.permutation(9) + 5
        cluster = rng.integers(0, 4, 9)  # nobody of cluster 3 is present
        members = (cluster == np.arange(3)[:, None]) & (rng.random((3, 1)) < 0.8)
        result = np.asarray(halves(cosines, ids, members, linkage=linkage))
        largest = between(cosines, members, result)
        for k, inside in enumerate(members):
            at = np.flatnonzero(inside)
            at = at[np.argsort(ids[at])]
            if len(at) < 3:
                continue
            near = cosines[np.ix_(at, at)]
            first, second = cfl.two_groups(near, linkage)
            np.testing.assert_array_equal(result[at], np.isin(np.arange(len(at)), second))
            assert largest[k] == cfl.largest_between(near, first, second)
            cuts += 1
        assert not result[~members.any(axis=0)].any()
    assert cuts > 60


def test_thresholds_are_strict_and_wait_for_the_first_round_of_splits():
    federation = toy_federation((4, 4, 4), (2, 2, 2))

    def ran(**settings):
        states, records = run_rounds(algorithm(**settings), federation, 2, scored=())
        return states[1].count, states[2].count, records[0]["clients"]

    first, second, noted = ran(mean_below=0)
    mean, largest = noted["mean_norm"][0], noted["update_norm"].max()
    assert (first, second) == (1, 1)
    assert ran()[:2] == (2, 2)  # the halves have no more than two members
    assert ran(first_split=1)[:2] == (1, 2)
    assert ran(mean_below=mean)[0] == 1
    assert ran(mean_below=np.nextafter(mean, 9))[0] == 2
    assert ran(largest_above=largest)[0] == 1
    assert ran(largest_above=np.nextafter(largest, 0))[0] == 2
    assert ran(gamma_max=1)[0] == 1


@pytest.mark.thorough
def test_a_new_client_trains_the_best_model_of_a_cluster_in_use():
    case = Case()
    left, new = split_new_clients(case.federation, 2)
    chooser = algorithm(max_clusters=3)
    (start,) = states_of(chooser, left, 0)
    at = case.samples(3)
    models = [case.initial(f"init{k}") for k in range(3)]
    models.sort(key=lambda model: -loss_and_gradient(model, case.x[at], case.y[at])[0])
    stacked = {"params": jax.tree.map(lambda *leaves: np.stack(leaves), *models)}
    state = replace(start, models=stacked, count=np.int32(2))  # the third, the best, is not in use
    new = new.with_training(local_steps=2)
    made = final_in(state, chooser, left, 1).personalize(new)
    key, wanted, chosen = keys.of_round(case.key, "personalize", 0), [], []
    for row, client in enumerate((3, 4)):
        batches = pfl.training.batch_indices(new.schedule, new.data.train, key, client, row)
        batches = [np.asarray(batch) for (batch,) in batches]
        mine = case.samples(client)
        losses = [loss_and_gradient(m, case.x[mine], case.y[mine])[0] for m in models[:2]]
        chosen.append(int(np.argmin(losses)))
        wanted.append(sgd(models[chosen[-1]], batches, case.x, case.y, case.rates[0]))
    assert chosen[0] == 1
    assert_models(jax.tree.map(lambda leaf: leaf[0], made), wanted, "new clients")


def test_remarks():
    assert algorithm().remarks(toy_federation()) == []
    assert algorithm().remarks(toy_federation(participation=0.6)) == [
        "made for full participation: a split moves only clients that take part"
    ]


@pytest.mark.thorough
def test_a_run_that_ends_before_the_first_split_is_told():
    """A remark says so, of the settings of a sweep that it concerns and of a stopped run too."""
    text = "is FedAvg with equal weights: no cluster is split in the first 2 rounds"
    swept, one_by_one = {"first_split": [2, 1]}, {"chunk_seconds": 0, "chunk": CAPACITY}
    federation = sampled_federation()  # its program is that of the shared checks
    result = pfl.simulate(algorithm(), federation, 2, settings=swept, **one_by_one)
    assert text not in result.remarks and result.setting_remarks == ((text,), ())
    stops = iter([False, True])
    result = pfl.simulate(
        algorithm(first_split=2),
        federation,
        9,
        seeds=SEEDS,
        stop=lambda progress: next(stops),
        **one_by_one,
    )
    assert result.rounds == 2 and text in result.remarks
    assert algorithm(first_split=2).round_remarks(toy_federation(), 3) == []


def test_a_cluster_has_a_member_so_there_are_no_more_than_clients():
    federation = toy_federation()
    shapes = jax.eval_shape(lambda: _first(algorithm(), federation))
    assert jax.tree.leaves(shapes.models)[0].shape[0] == 5


def _first(chooser, federation):
    key, zero = jax.random.key(0), jnp.int32(0)
    return chooser.init(pfl.Context(federation, key, zero, zero, None))
