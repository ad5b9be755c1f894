"""pFedHN against its reference, which starts from the library's own hypernetwork."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, toy_federation
from fedjax_pfl.utils import keys, trees
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import assert_models
from tests.algorithms.norms import ConvNorm
from tests.references import pfedhn
from tests.references.network import loss_and_gradient

# Small, and such that every part of a step shows in three rounds.
SMALL = {"embedding_size": 2, "hidden_size": 6, "depth": 2, "server_rate": 0.2}
BITING = {"server_clip": 0.4, "clip": 0.3, "server_decay": 0.03, "server_momentum": 0.7}
LOCAL = {"momentum": 0.8, "weight_decay": 0.02}


def made(**settings):
    return pfl.make_algorithm("pfedhn", {**SMALL, **settings})


def layer(kernel, bias):
    return {"kernel": kernel.reshape(len(kernel), -1), "bias": np.ravel(bias)}


def written(psi):
    """A hypernetwork in the reference's form."""
    output = jax.tree.map(layer, psi.kernel["params"], psi.bias["params"])
    output = {name: leaves for name, leaves in output.items() if leaves["bias"] is not None}
    return {"trunk": [layer(*part) for part in psi.trunk], "output": output}


def in_order(case):
    """The cohorts of all rounds in the order in which clients have their turns."""
    orders = []
    for t in range(case.rounds):
        cohort = case.cohort(t)
        rows = cohort.rows[cohort.order(keys.of_round(case.key, "order", t))]
        orders.append([int(row) for row in rows if row in case.cohorts[t]])
    return orders


def context(federation, t=1, cohort=None):
    """A round of all clients."""
    ctx = pfl.Context(federation, jax.random.key(3), jnp.int32(t), jnp.int32(9), cohort)
    return ctx if cohort is not None else replace(ctx, cohort=ctx.cohort_of())


def inputs(one):
    case, first, settings = one.case, one.states[0], one.settings
    heads = [case.initial()["head"]] * case.num_clients if settings.get("local_head") else None
    local = LOCAL if settings.get("local_head") else dict.fromkeys(LOCAL, 0.0)
    return {
        "cohorts": in_order(case),
        "embeddings": first.embedding,
        "hypernetwork": written(first.psi),
        "heads": heads,
        "embedding_rate": settings["embedding_rate"] * settings["server_rate"],
        **local,
    }


def check(now):
    state, models = now.state, now.wanted
    numbers = pfedhn.numbers(state.embedding, written(state.psi))
    expected = pfedhn.numbers(models["embeddings"], models["hypernetwork"])
    np.testing.assert_allclose(numbers, expected, 1e-9, 1e-9)
    velocity = pfedhn.numbers(state.velocity_v, written(state.velocity_psi))
    np.testing.assert_allclose(velocity, models["velocity"], 1e-9, 1e-9)
    if now.settings.get("local_head"):
        own = [{"head": model["head"]} for model in models["personalized"]]
        assert_models(state.private, own, "heads")


test_reference, test_contract = comparison(
    "pfedhn",
    pfedhn.run,
    settings={**SMALL, **BITING, "embedding_rate": 3.0},
    variants={
        "sequential": {},
        "local-head": Variant({"local_head": True}, options={**LOCAL, "batch_order": "fresh"}),
    },
    ours=("embedding_size", "hidden_size", "depth", "local_head"),
    given=inputs,
    scores={"personalized": "personalized"},
    check=check,
)


@pytest.mark.costly
def test_new_clients_of_pfedhn():
    """They learn an embedding through the frozen hypernetwork."""
    algorithm = made(local_head=True, clip=0.001)
    whole = algorithm.prepare(toy_federation(model=TanhNetwork(), local_epochs=2))
    left, new = pfl.split_new_clients(whole, 2)
    ctx = context(left)

    @jax.jit
    def personalized():
        state = algorithm.init(ctx)
        noise = jax.random.normal(jax.random.key(1), (3,))
        private = jax.tree.map(lambda leaf: leaf + trees.expand_to(leaf, noise), state.private)
        state = replace(state, private=private)
        return (
            state,
            algorithm.personalize(ctx, state, context(new).of_new_clients()),
            ctx.initial_model(),
        )

    state, found, initial = jax.device_get(personalized())
    psi, like = written(state.psi), {"hidden": initial["params"]["hidden"]}
    x, y = np.asarray(new.data.samples, np.float64), np.asarray(new.data.labels)
    key = keys.of_round(ctx.key, "personalize", 1)
    split = jax.tree.map(np.asarray, new.data.train)
    for k, client in enumerate(np.asarray(new.data.ids)):
        vector = np.mean(state.embedding, axis=0)
        head = jax.tree.map(lambda leaf: np.mean(leaf, axis=0), state.private["params"]["head"])
        steps = 0
        for (batch,) in pfl.training.batch_indices(new.schedule, split, key, int(client), k):
            model = {**pfedhn.generate(vector, psi, like), "head": head}
            _, gradient = loss_and_gradient(model, x[batch], y[batch])
            slope, _ = pfedhn.generate_vjp(vector, psi, gradient)
            length = np.linalg.norm(slope)
            assert length > 0.001
            slope *= 0.001 / length
            vector = vector - 0.3 * slope
            head = jax.tree.map(lambda h, g: h - 0.3 * g, head, gradient["head"])
            steps += 1
        assert steps > 1
        wanted = {"params": {**pfedhn.generate(vector, psi, like), "head": head}}
        assert_close(trees.row(found, k), wanted, f"new client {client}")


@pytest.mark.costly
def test_running_statistics_and_extra_losses_in_pfedhn():
    algorithm = made()
    federation = algorithm.prepare(toy_federation(model=ConvNorm(), participation=0.6))

    @jax.jit
    def one_round():
        key = jax.random.key(0)
        cohort = federation.participation.cohort(key, jnp.int32(0), federation.data.ids)
        ctx = context(federation, cohort=cohort)
        state = algorithm.init(ctx)
        after, _ = algorithm.round(ctx, state)
        regularized = federation.replace_training(extra_loss=pfl.training.WeightDistribution(5.0))
        new, other = (
            algorithm.personalize(ctx, after, replace(ctx, federation=fed).of_new_clients())
            for fed in (federation, regularized)
        )
        return state.private, after.private, after.psi, cohort.mask, cohort.rows, new, other

    before, after, psi, mask, rows, new, other = one_round()
    assert (new["params"]["head"]["bias"] != other["params"]["head"]["bias"]).all()
    assert not jax.tree.leaves(after["params"]) and not jax.tree.leaves(psi.bias["batch_stats"])
    present = np.isin(np.arange(5), rows[mask])
    old, now, newest = (tree["batch_stats"]["bn"]["mean"] for tree in (before, after, new))
    np.testing.assert_array_equal((old != now).any(axis=1), present)
    assert (newest != now).any(axis=1).all()  # they are trained with


def test_default_sizes_of_pfedhn():
    algorithm = pfl.make_algorithm("pfedhn")
    ctx = context(algorithm.prepare(toy_federation()))
    state = jax.eval_shape(lambda: algorithm.init(ctx))
    assert state.embedding.shape == (5, 2)  # 1 + 5 // 4
    assert [kernel.shape for kernel, _ in state.psi.trunk] == [(2, 100)] + [(100, 100)] * 3
    assert state.psi.kernel["params"]["head"]["kernel"].shape == (100, 5, 3)


@pytest.mark.costly
def test_first_hypernetwork():
    algorithm = made(embedding_size=4, hidden_size=25)
    state, moved = jax.device_get(
        [
            jax.jit(
                partial(algorithm.init, context(algorithm.prepare(toy_federation(order=order))))
            )()
            for order in (None, [3, 0, 4, 1, 2])
        ]
    )
    (first, _), (second, shift), *_ = state.psi.trunk
    for leaf, bound in (
        (first, 1 / 2),
        (second, 1 / 5),
        (shift, 1 / 5),
        (state.psi.kernel["params"]["fc_0"]["kernel"], 1 / 5),
        (state.psi.bias["params"]["fc_0"]["kernel"], 1 / 5),
    ):
        assert 0.8 * bound < abs(leaf).max() <= bound
    assert not np.array_equal(second[:4], first)
    np.testing.assert_array_equal(moved.embedding, state.embedding[np.array([3, 0, 4, 1, 2])])
    assert 0.5 < np.std(state.embedding) < 1.6
