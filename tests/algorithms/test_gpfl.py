"""GPFL against its reference, what is scored, and what is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.gpfl import norm
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import assert_close, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_steps, over
from tests.engine.finals import final_in
from tests.references import gpfl
from tests.references.network import cross_entropy

VARIANTS = {"default": {}, "far": {"weight": 0.7, "module_decay": 0.0}}


def algorithm(**settings):
    return pfl.make_algorithm("gpfl", settings)


def named(params):
    """One model of the library by the reference's names."""
    params = {name: part for name, part in params.items() if part is not None}
    params = jax.tree.map(np.asarray, params)
    valve, e = params.pop("valve"), params.pop("class_embeddings")
    params.pop("class_shares", None)
    return {**params, **valve, "embeddings": {"e": e}}


@over(PATTERNS, [("partial-map", "far"), ("full-vmap", "default")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    states, records = case.run_rounds(algorithm(**settings))
    shared = {name: part for name, part in states[0].server["params"].items() if part is not None}
    heads = states[0].private["params"]["head"]
    initial = named({**shared, "head": jax.tree.map(lambda leaf: leaf[0], heads)})
    assert_close({k: initial[k] for k in ("head", "hidden")}, case.initial(), "the network's", 0)
    assert abs(np.std(initial["embeddings"]["e"]) - 1) < 0.5
    common = case.common()
    wanted = gpfl.run(initial, case.clients(), 3, **common, **settings)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(named(state.server["params"]), models["global"], f"shared in round {t}")
        private = state.private["params"]
        np.testing.assert_allclose(private["class_shares"], models["shares"], 1e-12)
        for i, model in enumerate(models["personalized"]):
            own = jax.tree.map(lambda leaf, i=i: leaf[i], private["head"])
            assert_close(own, model["head"], f"head of {i}")
        assert_steps(record, case.cohorts[t], common["batches"][t])
        if case.scored:
            losses = [
                cross_entropy(gpfl.logits(model, case.x[at], share), case.y[at])[0]
                if len(at)
                else np.nan
                for i, (model, share) in enumerate(
                    zip(models["personalized"], models["shares"], strict=True)
                )
                for at in [case.samples(i, "test")]
            ]
            np.testing.assert_allclose(record["scores"]["personalized/test/loss"], losses, 1e-9)
        share = case.present(t) * case.sizes
        np.testing.assert_allclose(record["matrices"]["mixing"], [share / share.sum()], 1e-9)
    if pattern == "partial-map":
        assert_new_clients(case, states, wanted[-1], settings)


def assert_new_clients(case, states, last, settings):
    """They train for a round, from the mean of all heads and with their own class shares."""
    final = final_in(states[-1], algorithm(**settings), case.federation, case.rounds)
    made = final.personalize(case.federation)["params"]
    heads = [model["head"] for model in last["personalized"]]
    mean = {leaf: np.mean([head[leaf] for head in heads], axis=0) for leaf in heads[0]}
    start = {**last["global"], "head": mean}
    batches = case.batches("personalize", starts=case.everyone)
    for i, own in enumerate(batches[-1]):
        options = settings["weight"], settings["module_decay"]
        share = last["shares"][i]
        wanted = gpfl.train(start, own, case.x, case.y, share, case.rates[-1], *options)
        ours = jax.tree.map(lambda leaf, i=i: leaf[0, i], made)
        assert_close(named(ours), wanted, f"new client {i}")
        np.testing.assert_allclose(ours["class_shares"], share, 1e-12)


def test_what_stays_and_what_is_sent():
    federation = algorithm().prepare(toy_federation())
    sizes = dict(zip(federation.plan.blocks, federation.plan.shared_block_sizes(), strict=True))
    assert sizes["head"] == sizes["class_shares"] == 0
    assert sizes["class_embeddings"] == 3 * 5
    assert sum(size for name, size in sizes.items() if "valve" in name) == 2 * (25 + 3 * 5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_round_in_half_precision(dtype):
    """Cosines and norms are in float32, the loss in the model's type; traced only."""
    federation = algorithm().prepare(toy_federation(dtype=dtype))
    program = Program(make_runs(algorithm(), federation, [0]), federation, 1)
    shapes = jax.eval_shape(program.start)
    after = jax.eval_shape(lambda states: program.advance(states, 0, 1)[0], shapes)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(after)} == {dtype}


def test_the_distance_has_a_gradient_where_it_is_zero():
    np.testing.assert_array_equal(jax.grad(norm)(jnp.zeros((2, 3))), 0)
    np.testing.assert_allclose(jax.grad(norm)(jnp.array([3.0, 4.0])), [0.6, 0.8], 1e-12)
