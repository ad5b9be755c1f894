"""FedFomo against its reference, what clients download, and models of new clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context
from fedjax_pfl.algorithms import fedfomo as downloads
from fedjax_pfl.algorithms.fedfomo import State, signed_weights
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.testing.toys import assert_close
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import Case, unstack
from tests.references import fedfomo

LATE = {"participation": 1.0, "stragglers": {1: 1, 3: 2}, "scored": False}
VALIDATION = 2  # samples of each client
CHANCE, FALL = 0.6, 0.25  # three rounds explore with 0.6, 0.35 and 0.1


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


def validation(case, i):
    return {"validation": case.samples(i, "validation")}


def downloads_and_validation(one):
    clients = [{**c, **validation(one.case, i)} for i, c in enumerate(one.case.clients())]
    return {"clients": clients, "draws": drawn(one.case, one.settings["downloads"])}


def check_mixture_and_costs(now):
    weights, present, count = now.wanted["weights"], now.present, now.case.num_clients
    np.testing.assert_allclose(now.state.affinity, now.wanted["affinity"], 1e-8, 1e-8)
    if now.t == 0:
        # A model is where it began: public code divides by that 0, or by 1e-5 in its place.
        np.testing.assert_array_equal(now.state.affinity, 0.1 * np.eye(count))
    kept = np.eye(count) * ~weights.any(axis=1, keepdims=True)  # shown as its own
    np.testing.assert_allclose(now.record["matrices"]["mixing"], weights + kept, 1e-9, 1e-9)
    now.assert_copies(present, [len(now.wanted["downloaded"].get(i, ())) for i in range(count)])
    mixed = now.clients["mixed_models"]
    np.testing.assert_array_equal(mixed[present], np.count_nonzero(weights, 1)[present])
    passes = (2 + min(now.settings["downloads"], count - 1)) * VALIDATION * present
    np.testing.assert_array_equal(now.clients["forward_samples"], passes)


def check_models_were_mixed(one):
    if one.pattern != "single":
        assert any(np.count_nonzero(models["weights"], axis=1).max() > 1 for models in one.wanted)


test_reference, test_contract = comparison(
    "fedfomo",
    fedfomo.run,
    settings={"exploration": CHANCE, "exploration_decay": FALL},
    variants={
        "two": {"downloads": 2},
        "three l1 raw": {"downloads": 3, "norm": "l1", "affinity": "raw"},
        "all back to the start": {"downloads": 9, "fallback": "start"},
        "late": Variant({"downloads": 4}, options=LATE),
    },
    options={"rounds": 7, "validation_size": VALIDATION},
    ours=("exploration", "exploration_decay"),
    given=downloads_and_validation,
    states={"starts": "personalized", "trained": "trained"},
    scores={"personalized": "personalized", "last_trained": "trained"},
    copies=None,
    check=check_mixture_and_costs,
    finish=check_models_were_mixed,
)


def context(algorithm, federation, t=1):
    federation, key = algorithm.prepare(federation), jax.random.key(0)
    cohort = federation.participation.cohort(key, t, federation.data.ids)
    return Context(federation, key, jnp.int32(t), jnp.int32(t + 1), cohort)


def models_of(ctx, *names):
    """A stack of unlike models, one for each name."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(ctx.initial_model, names))


@pytest.mark.costly
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
    starts, models = unstack(starts["params"]), unstack(models["params"])
    assert (weights[choice == 2] == 0).all() and weights[4, 2] == 0 == weights[1, 0]
    for i in (0, 1, 3, 4):
        these = [{**starts[i], "head": models[j]["head"]} for j in choice[i] if j != 2]
        client = validation(case, i)
        _, _, wanted = fedfomo.mix(starts[i], these, client, case.x, case.y)
        wanted[2:] *= i != 4
        np.testing.assert_allclose(weights[i][choice[i] != 2], wanted, 1e-9)


@pytest.mark.costly
@pytest.mark.parametrize("validation_size", [3, 0])
def test_new_clients_mix_once(validation_size):
    """Their own model with those of random others, by their validation samples."""
    case = Case(rounds=1, validation_size=validation_size)
    federation, new = split_new_clients(case.federation, 2)
    algorithm = pfl.make_algorithm("fedfomo", {"downloads": 1})
    uploads = np.array([0, -1, 1])  # the second never sent a model

    @jax.jit
    def personalize(federation, new):
        ctx, theirs = context(algorithm, federation), context(algorithm, new).of_new_clients()
        starts, seen = models_of(ctx, *"abc"), (jnp.eye(3), jnp.asarray(uploads, jnp.int32))
        first = State(starts, starts, *seen)
        alone = pfl.Algorithm.personalize(algorithm, ctx, first, theirs)
        known = jax.tree.map(lambda leaf: leaf[jnp.array([0, 1, 1])] * 0.9, alone)  # of some help
        state = State(starts, known, *seen)
        return starts, known, alone, algorithm.personalize(ctx, state, theirs)

    stacks = personalize(federation, new)
    starts, known, alone, made = (unstack(models["params"]) for models in stacks)
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
