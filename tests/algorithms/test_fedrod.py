"""FedRoD against its reference, its two losses, and its limits."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_steps, over, stack
from tests.algorithms.norms import ConvNorm, assert_everyones
from tests.engine.finals import final_in
from tests.references import fedrod, network

VARIANTS = {"plain": {}, "slower-and-trained": {"personal_weight": 0.5, "score_trained": True}}
# Of an incomplete batch at the end of a client's samples, which is dropped, classes count too: a
# published form counts what its loader gives.
QUICK = [("partial-map", "plain"), ("full-vmap", "slower-and-trained"), ("full-map-drop", "plain")]


def algorithm(**settings):
    return pfl.make_algorithm("fedrod", settings)


@cache
def rounds_of(pattern, variant):
    case = Case(**PATTERNS[pattern])
    return case, *case.run_rounds(algorithm(**VARIANTS[variant]))


def joined(model):
    """The network with one head whose logits are those of both."""
    both = network.add({"head": model["head"]}, {"head": model["personal_head"]})
    return {"hidden": model["hidden"], **both}


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    case, states, records = rounds_of(pattern, variant)
    common, rate = case.common(), VARIANTS[variant].get("personal_weight", 1.0)
    wanted = fedrod.run(case.initial(), case.clients(), 3, **common, personal_weight=rate)
    last = [{**case.initial(), "personal_head": case.initial()["head"]}] * case.num_clients
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_everyones(state, models["personalized"], f"round {t}")
        assert_losses(record, case, "personalized", list(map(joined, models["personalized"])))
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)
        case.assert_mean(record, t)
        if "trained" in variant:
            last = [models["trained"].get(i, model) for i, model in enumerate(last)]
            assert_close(state.trained, stack(last), "trained")
            assert_losses(record, case, "trained", list(map(joined, last)))


def test_personal_heads_are_not_sent():
    case, *_ = rounds_of("partial-map", "plain")
    plan = algorithm().prepare(case.federation).plan
    sizes = dict(zip(plan.blocks, plan.shared_block_sizes().tolist(), strict=True))
    assert sizes == {"hidden": 25, "head": 18, "personal_head": 0}


@pytest.mark.thorough
def test_the_generic_model_learns_nothing_from_personal_heads():
    """Whether these learn or stand still, in lanes of one program."""
    federation = toy_federation(model=TanhNetwork(), participation=0.6, momentum=0.5)
    rates = {"personal_weight": (0.0, 1.0)}
    result = pfl.simulate(algorithm(), federation, 2, settings=rates, seeds=(0,))
    models = result.final.models()
    generic = jax.tree.map(np.asarray, models["global"].model)
    assert_close(*(jax.tree.map(lambda leaf, k=k: leaf[k], generic) for k in (0, 1)), "generic", 0)
    heads = models["personalized"]["params"]["personal_head"]["kernel"]
    first = Case(participation=0.6).initial()["head"]["kernel"]
    np.testing.assert_array_equal(heads[0], np.broadcast_to(first, heads[0].shape))
    moved = (np.asarray(heads[1]) != first).any(axis=(1, 2))
    assert moved.sum() >= 3


def test_new_clients_learn_a_personal_head():
    case, states, _ = rounds_of("partial-map", "plain")
    final = final_in(states[-1], algorithm(), case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    params = states[-1].server["params"]
    server = jax.tree.map(np.asarray, {name: params[name] for name in ("hidden", "head")})
    batches, wanted = case.batches("personalize")[-1], []
    for i, own in enumerate(batches):
        offset = fedrod.log_counts(case.y[case.samples(i)], 3)
        first, rate = case.initial()["head"], case.rates[-1]
        head = fedrod.train_client(server, first, own, case.x, case.y, rate, offset)[1]
        wanted.append({**server, "personal_head": head})
    assert_close(made, stack(wanted), "new clients")


@pytest.mark.parametrize(("options", "whole"), [({}, True), ({"batch_norm": "local"}, False)])
def test_without_one_model_for_all_there_is_no_global_score(options, whole):
    ours = algorithm()
    federation = ours.prepare(toy_federation(model=ConvNorm(), **options))
    key, zero = jax.random.key(0), jnp.int32(0)
    cohort = federation.participation.cohort(key, zero, federation.data.ids)
    ctx = Context(federation, key, zero, zero + 1, cohort)
    named = jax.eval_shape(lambda: ours.models(ctx, ours.init(ctx), np.arange(5)))
    assert ("global" in named) == whole


def test_extra_losses_see_the_features():
    seen = []

    @pfl.core.struct
    class Seeing(pfl.training.ExtraLoss):
        def __call__(self, params, batch, client, plan):
            seen.append((batch.logits.shape, batch.features.shape))
            return jnp.sum(batch.features**2)

    federation = toy_federation(model=TanhNetwork(), extra_loss=Seeing())
    pfl.Simulation(algorithm(), federation).check()
    assert set(seen) == {((4, 3), (4, 5))}
