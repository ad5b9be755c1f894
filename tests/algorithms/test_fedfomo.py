"""FedFomo against its reference, what clients download, its limits, and models of new clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context
from fedjax_pfl.algorithms import fedfomo as downloads
from fedjax_pfl.algorithms.fedfomo import State, signed_weights
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.references import fedfomo

CHANCE, FALL = 0.6, 0.25  # three rounds explore with 0.6, 0.35 and 0.1
VARIANTS = {
    "two": {"downloads": 2},
    "three-l1-raw": {"downloads": 3, "norm": "l1", "affinity": "raw"},
    "all-back-to-the-start": {"downloads": 9, "fallback": "start"},
}


def numbers_of(*args):
    """The library's random numbers, as integers that the reference can negate."""
    luck, *numbers = jax.device_get(downloads.draws(*args))
    return luck, *(n.astype(np.int64) for n in numbers)


def drawn(case, most):
    """draws[t][i] of the reference: which picks are random, and the numbers that decide."""
    ids, draws = case.federation.data.ids, []
    count = min(most, case.num_clients - 1)
    for t in range(case.rounds):
        key = keys.of_round(case.key, "fedfomo", t)
        luck, *numbers = numbers_of(key, ids, ids, count)
        explores = luck < max(CHANCE - FALL * t, 0)
        draws.append(list(zip(explores, *numbers, strict=True)))
    return draws


@over(PATTERNS, [("partial-map", "two"), ("full-vmap", "three-l1-raw")], VARIANTS)
def test_reference(pattern, variant):
    settings = VARIANTS[variant]
    case = Case(rounds=4, validation_size=3, **PATTERNS[pattern])
    clients = [
        {**client, "validation": case.samples(i, "validation")}
        for i, client in enumerate(case.clients())
    ]
    common, draws = case.common(), drawn(case, settings["downloads"])
    wanted = fedfomo.run(case.initial(), clients, 4, **common, **settings, draws=draws)
    explores = {"exploration": CHANCE, "exploration_decay": FALL}
    states, records = case.run_rounds(pfl.make_algorithm("fedfomo", {**settings, **explores}))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_models(state.starts, models["personalized"], f"starts {t}")
        assert_models(state.trained, models["trained"], f"trained {t}")
        for name in ("personalized", "trained"):
            assert_losses(record, case, name, models[name])
        np.testing.assert_allclose(state.affinity, models["affinity"], 1e-8, 1e-8)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        weights, seen = models["weights"], record["matrices"]["mixing"]
        kept = np.eye(case.num_clients) * ~weights.any(axis=1, keepdims=True)  # shown as its own
        np.testing.assert_allclose(seen, weights + kept, 1e-9, 1e-9)
        present = case.present(t)
        np.testing.assert_array_equal(record["up"], np.repeat(present[:, None], 2, axis=1))
        down = [len(models["downloaded"].get(i, ())) for i in range(case.num_clients)]
        np.testing.assert_array_equal(record["down"], np.repeat(np.array(down)[:, None], 2, 1))
        mixed = record["clients"]["mixed_models"]
        np.testing.assert_array_equal(mixed[present], np.count_nonzero(weights, 1)[present])
        passes = (2 + min(settings["downloads"], case.num_clients - 1)) * 3 * present
        np.testing.assert_array_equal(record["clients"]["forward_samples"], passes)
    # At first a model is where it began: public code divides by that 0, or by 1e-5 in its place.
    np.testing.assert_array_equal(states[1].affinity, 0.1 * np.eye(case.num_clients))
    if pattern != "single":
        assert any(np.count_nonzero(models["weights"], axis=1).max() > 1 for models in wanted)


def test_picks():
    """With equal affinities, fewer candidates than picks, and clients without any."""
    rng = np.random.default_rng(0)
    clients, count, most = 30, 6, 4
    affinity = rng.integers(-1, 2, (clients, count)) / 2.0
    candidates = rng.random((clients, count)) < rng.random((clients, 1))
    explores = rng.random((clients, most)) < 0.5
    priority, ties = rng.permuted(np.tile(np.arange(count), (2, clients, 1)), axis=2)
    picks, found = downloads.pick(affinity, candidates, explores, priority, ties.astype(np.uint32))
    assert not found.all() and found.any(axis=1).any() and not found.any(axis=1).all()
    for i in range(clients):
        left = np.flatnonzero(candidates[i])
        wanted = fedfomo.pick(affinity[i], left, most, explores[i], priority[i], ties[i])
        assert picks[i][found[i]].tolist() == wanted


def context(algorithm, federation, t=1):
    federation, key = algorithm.prepare(federation), jax.random.key(0)
    cohort = federation.participation.cohort(key, t, federation.data.ids)
    return Context(federation, key, jnp.int32(t), jnp.int32(t + 1), cohort)


def models_of(ctx, *names):
    """A stack of unlike models, one for each name."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(ctx.initial_model, names))


def listed(models):
    """Parameters of a stack's models, one by one."""
    count = len(jax.tree.leaves(models)[0])
    return [
        jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), models["params"]) for i in range(count)
    ]


def validation(case, i):
    return {"validation": case.samples(i, "validation")}


@pytest.mark.thorough
def test_weights_by_shared_layers_and_not_by_models_that_overflow():
    """Each client puts its own private layers into what it downloads: nobody sends theirs."""
    case = Case(rounds=1, validation_size=3, share="head")
    algorithm = pfl.make_algorithm("fedfomo")
    choice = np.array([[i, (i + 1) % 5, (i + 3) % 5] for i in range(5)])

    @jax.jit
    def weigh(federation):
        ctx = context(algorithm, federation)
        starts, models = (models_of(ctx, *(f"{kind} {i}" for i in range(5))) for kind in "ab")
        mine, head = starts["params"]["head"], models["params"]["head"]
        head = jax.tree.map(lambda leaf: leaf.at[2].set(1e308), head)
        same = jax.tree.map(lambda leaf: leaf[1] * (1 + 1e-9), mine)  # but for rounding
        head = jax.tree.map(lambda leaf, row: leaf.at[1].set(row), head, same)
        models = {"params": {**models["params"], "head": head}}
        found = jnp.ones((5, 2), bool).at[4, 1].set(False)
        return starts, models, signed_weights(ctx, "l2", starts, models, choice, found)

    starts, models, weights = weigh(case.federation)
    starts, models = listed(starts), listed(models)
    assert (weights[choice == 2] == 0).all() and weights[4, 2] == 0 == weights[1, 0]
    for i in (0, 1, 3, 4):
        these = [{**starts[i], "head": models[j]["head"]} for j in choice[i] if j != 2]
        client = validation(case, i)
        _, _, wanted = fedfomo.mix(starts[i], these, client, case.x, case.y)
        wanted[2:] *= i != 4
        np.testing.assert_allclose(weights[i][choice[i] != 2], wanted, 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("validation_size", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_new_clients_mix_once(validation_size):
    """Their own model with those of random others, by their validation samples."""
    case = Case(rounds=1, validation_size=validation_size)
    federation, new = split_new_clients(case.federation, 2)
    algorithm = pfl.make_algorithm("fedfomo", {"downloads": 1})
    uploads = np.array([0, -1, 1])  # the second never sent a model

    @jax.jit
    def personalize(federation, new):
        ctx, theirs = context(algorithm, federation), context(algorithm, new)
        starts, seen = models_of(ctx, *"abc"), (jnp.eye(3), jnp.asarray(uploads, jnp.int32))
        first = State(starts, starts, *seen)
        alone = pfl.Algorithm.personalize(algorithm, ctx, first, theirs)
        known = jax.tree.map(lambda leaf: leaf[jnp.array([0, 1, 1])] * 0.9, alone)  # of some help
        state = State(starts, known, *seen)
        return starts, known, alone, algorithm.personalize(ctx, state, theirs)

    starts, known, alone, made = map(listed, personalize(federation, new))
    begun = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *starts)
    key = keys.of_round(jax.random.key(0), "fedfomo", 1)
    luck, *numbers = numbers_of(key, new.data.ids, federation.data.ids, 1)
    helped = 0
    for k, (own, model) in enumerate(zip(alone, made, strict=True)):
        there = np.flatnonzero(uploads >= 0)
        who = fedfomo.pick(np.zeros(3), there, 1, luck[k] < 0.25, *(n[k] for n in numbers))
        models, client = [own, *(known[j] for j in who)], validation(case, 3 + k)
        wanted, share, _ = fedfomo.mix(begun, models, client, case.x, case.y)
        helped += np.count_nonzero(share[1:])
        assert_close(model, wanted, f"client {k}")
    assert (helped > 0) == (validation_size > 0)


@pytest.mark.thorough
def test_late_clients_download_nothing_and_are_no_candidates_until_they_upload():
    """Who diverges has downloaded, but uploads nothing."""
    federation = toy_federation(stragglers={1: 1, 3: 2}, diverging=0)
    algorithm = pfl.make_algorithm("fedfomo", {"downloads": 4})
    states, records = run_rounds(algorithm, federation, 3, scored=())
    before = np.zeros(5, bool)
    for state, record in zip(states[1:], records, strict=True):
        came = record["clients"]["participated"]
        others = before.sum() - (before & came)
        np.testing.assert_array_equal(record["down"][:, 0], others * came)
        assert not record["clients"]["forward_samples"][~came].any()
        weights = record["matrices"]["mixing"]
        assert not weights[np.ix_(came, ~before)][
            ~np.eye(5, dtype=bool)[np.ix_(came, ~before)]
        ].any()
        before = came & ~record["clients"]["diverged"]
        assert came[0] and not before[0]
        np.testing.assert_array_equal(state.last_upload == state.last_upload.max(), before)


def test_half_precision_is_traced_without_a_warning():
    """Losses are single precision, affinities are not."""
    algorithm = pfl.make_algorithm("fedfomo")
    federation = algorithm.prepare(toy_federation(dtype="bfloat16"))
    program = Program(make_runs(algorithm, federation, [0]), federation, 1, scored=())
    start = jax.eval_shape(program.start)
    after = jax.eval_shape(lambda states: program.advance(states, 0, 1).states, start)
    assert after.affinity.dtype == "bfloat16"


def test_remarks():
    algorithm = pfl.make_algorithm("fedfomo")
    remarks = algorithm.remarks(algorithm.prepare(toy_federation()))
    last = "scored before its last local training"
    assert remarks == [last]
    all_told = "downloads all 4 others, not 9"
    many = pfl.make_algorithm("fedfomo", {"downloads": 9})
    assert many.remarks(toy_federation()) == [all_told, last]
    assert "downloads no other, not 4" in algorithm.remarks(toy_federation((4,), (2,)))
