"""CFL against its reference, its bipartition, its thresholds, and the clusters of new clients."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.cfl import largest_between, second_halves
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.testing.toys import CAPACITY, SEEDS, run_rounds, states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import Case, assert_losses, assert_models, maker, sampled_federation
from tests.engine.finals import final_in
from tests.references import cfl
from tests.references.local_sgd import sgd
from tests.references.network import loss_and_gradient

ALWAYS = {"mean_below": 1e9, "largest_above": 0.0, "first_split": 0}
SIZES = (8, 2, 5, 6, 4, 10, 1, 3, 7)


algorithm = maker("cfl", ALWAYS)


def validation_loss(case, i):
    at = case.samples(i, "validation")
    return lambda model: loss_and_gradient(model, case.x[at], case.y[at])[0]


def check_clusters(now):
    case, state, noted = now.case, now.state, now.clients
    everybody, present, count = range(case.num_clients), now.present, len(now.wanted["models"])
    clusters = np.array(now.wanted["clusters"])
    assert state.count == now.record["scalars"]["clusters"] == count
    used = jax.tree.map(lambda leaf: leaf[:count], state.models)
    assert_models(used, [now.wanted["models"][k] for k in range(count)], f"models of round {now.t}")
    if now.settings.get("best_of_tree"):
        best = [cfl.best_of_tree(now.wanted, i, validation_loss(case, i)) for i in everybody]
        assert_losses(now.record, case, "best_of_tree", best)
    before = now.before.cluster
    for i in everybody:
        mean, largest = now.wanted["norms"].get(before[i], (np.nan, np.nan))
        np.testing.assert_allclose(noted["mean_norm"][i], mean if present[i] else np.nan, 1e-9)
        others = [noted["update_norm"][j] for j in now.cohort if before[j] == before[i]]
        np.testing.assert_allclose(max(others, default=np.nan), largest, 1e-9)
    same = np.equal.outer(clusters, clusters) & present
    alone = np.eye(case.num_clients)
    mixed = np.where(present[:, None], same / same.sum(1, keepdims=True).clip(1), alone)
    np.testing.assert_allclose(now.record["matrices"]["mixing"], mixed, 1e-9)
    np.testing.assert_array_equal(noted["cluster"], np.where(present, clusters, np.nan))


def check_splits(one):
    """Two clusters split at once, more than there is room for, and one that gamma_max keeps."""
    counts = [len(models["models"]) for models in one.wanted]
    if (one.pattern, one.variant) == ("partial-map", "tree"):
        assert counts == [2, 4, 5]
    if (one.pattern, one.variant) == ("partial-map", "single"):
        assert counts == [1, 2, 3]
    assert counts[-1] > 1 or one.pattern == "single"  # one client is too few


test_reference, test_contract = comparison(
    "cfl",
    cfl.run,
    settings=ALWAYS,
    variants={
        "complete": {},
        "tree": Variant(
            {"max_clusters": 5, "best_of_tree": True},
            options={"train_sizes": SIZES, "validation_size": 2, "participation": 1.0},
        ),
        "single": Variant(
            {"linkage": "single", "gamma_max": 0.6, "max_clusters": 3},
            options={"train_sizes": SIZES},
        ),
    },
    ours=("best_of_tree",),
    given=lambda one: {"ids": one.case.federation.data.ids},
    states={"cluster": "clusters"},
    scores={"personalized": "personalized"},
    check=check_clusters,
    finish=check_splits,
)


@pytest.mark.costly
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


@pytest.mark.costly
def test_thresholds_are_strict_and_first_split_is_kept():
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


@pytest.mark.costly
def test_personalize_trains_the_best_model_of_a_cluster_in_use():
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
        number = int(new.data.ids[row])
        batches = pfl.training.batch_indices(new.schedule, new.data.train, key, number, row)
        batches = [np.asarray(batch) for (batch,) in batches]
        mine = case.samples(client)
        losses = [loss_and_gradient(m, case.x[mine], case.y[mine])[0] for m in models[:2]]
        chosen.append(int(np.argmin(losses)))
        wanted.append(sgd(models[chosen[-1]], batches, case.x, case.y, case.rates[0]))
    assert chosen[0] == 1
    assert_models(jax.tree.map(lambda leaf: leaf[0], made), wanted, "new clients")


@pytest.mark.costly
def test_round_remarks_of_a_stopped_run():
    stops = iter([False, True])
    result = pfl.simulate(
        algorithm(first_split=2),
        sampled_federation(),
        9,
        seeds=SEEDS,
        stop=lambda progress: next(stops),
        chunk=CAPACITY,
        chunk_seconds=0,
    )
    assert result.rounds == 2
    text = "is FedAvg with equal weights: no cluster is split in the first 2 rounds"
    assert text in result.remarks


def test_no_more_clusters_than_clients():
    federation = toy_federation()
    shapes = jax.eval_shape(lambda: _first(algorithm(), federation))
    assert jax.tree.leaves(shapes.models)[0].shape[0] == 5


def _first(chooser, federation):
    key, zero = jax.random.key(0), jnp.int32(0)
    return chooser.init(pfl.Context(federation, key, zero, zero, None))
