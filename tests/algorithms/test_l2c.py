"""L2C against its reference; pruning, its limits."""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import similarity
from fedjax_pfl.algorithms.l2c import nearest
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.testing.toys import (
    OverflowingNormed,
    assert_close,
    run_rounds,
    states_of,
    toy_federation,
)
from fedjax_pfl.utils import keys, trees
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.references import l2c, l2c_encoder

# In the first case clients are pruned in round 2 of 3, in the last one in the first, where all
# logits are equal. Minibatches have 4 samples: passes have 2, 1, 0, 3 and 1 steps.
VARIANTS = {
    "pruned": ({"logit_rate": 0.2, "prune_after": 1, "neighbours": 2}, 2),
    "whole-pass": ({"logit_rate": 0.2, "whole_pass": True}, (6, 2, 0, 9, 4)),
    "pruned-at-once": ({"prune_after": 0}, 2),
    "defaults": ({}, 2),
    "attention": ({"logit_rate": 0.2, "prune_after": 1, "weights": "attention"}, 2),
    "attention-pass": ({"weights": "attention", "whole_pass": True}, (6, 2, 0, 9, 4)),
}
ALIKE = ("pruned-at-once", "defaults", "attention-pass")  # made of what the others show
QUICK = (("partial-map", "pruned"), ("full-vmap", "whole-pass"), ("partial-map", "attention"))


def algorithm(**settings):
    return pfl.make_algorithm("l2c", settings)


def validation_batches(case):
    """[t][i]: the minibatches of one pass over the client's validation samples."""
    data = case.federation.data
    schedule = Schedule(batch_size=case.federation.schedule.batch_size)
    split = jax.tree.map(np.asarray, data.validation)

    def walk(t, i):
        key = keys.of_round(case.key, "validation", t)
        steps = pfl.training.batch_indices(schedule, split, key, int(data.ids[i]), i)
        return [np.asarray(batch) for (batch,) in steps]

    return [[walk(t, i) for i in range(case.num_clients)] for t in range(case.rounds)]


@over(PATTERNS, QUICK, VARIANTS, elsewhere=ALIKE)
def test_reference(pattern, variant):
    settings, validation_size = VARIANTS[variant]
    options = {"validation_size": validation_size, "scored": variant == "pruned"}
    case = Case(**options | PATTERNS[pattern])
    states, records = case.run_rounds(algorithm(**settings))
    common, further = case.common(), validation_batches(case)
    options = {k: v for k, v in settings.items() if k != "weights"}
    if settings.get("weights"):
        options["encoder"] = encoder_of(states[0].encoder)
        kernel = states[0].encoder[1][0]["kernel"]  # of the head's kernel, rows of 5 inputs
        assert kernel.shape == (5, 10) and 0.4 < abs(kernel).max() <= 5**-0.5
    wanted = l2c.run(
        case.initial(), case.clients(), 3, **common, validation_batches=further, **options
    )
    taken = further if settings.get("whole_pass") else [[b[:1] for b in own] for own in further]
    for t, (models, record) in enumerate(zip(wanted, records, strict=True)):
        after, who = states[t + 1], case.cohorts[t]
        assert_models(after.models, models["personalized"], "models")
        np.testing.assert_allclose(after.logits, models["logits"], 1e-9, 1e-9)
        np.testing.assert_array_equal(after.active, models["active"])
        assert_moments(after, models)
        np.testing.assert_allclose(record["matrices"]["mixing"], models["weights"], 1e-9, 1e-12)
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, who, common["batches"][t], taken[t])
        present = np.isin(np.arange(case.num_clients), who)
        heard = (models["active"] & present).sum(axis=1) * present
        np.testing.assert_array_equal(record["up"], np.repeat(present[:, None], 2, axis=1))
        np.testing.assert_array_equal(record["down"], np.repeat(heard[:, None], 2, axis=1))
        assert ("numbers_up" in record["clients"]) == ("weights" in settings)
        for way in ("up", "down") if "weights" in settings else ():
            sent = (1 + 5 + 1 + 4) * 10 + 4 * (10 + 10 * 20 + 20)  # an encoder for each tensor
            np.testing.assert_array_equal(record["clients"][f"numbers_{way}"], sent * present)


def encoder_of(ours):
    """An encoder in the reference's form."""
    layers, tensors = iter(ours), ("bias", "kernel")
    return {name: {leaf: next(layers) for leaf in tensors} for name in ("head", "hidden")}


def assert_moments(state, models):
    """Adam's states of what clients learn, and the encoder where they learn one."""
    *known, steps = zip(*models["moments"], strict=True)
    np.testing.assert_array_equal(state.steps, steps)
    for name, moments in zip(("mean", "square"), known, strict=True):
        for i, moment in enumerate(moments):
            own = jax.tree.map(lambda leaf, i=i: leaf[i], getattr(state, name))
            if models["encoder"] is not None:
                own = l2c_encoder.numbers(encoder_of(own))
            np.testing.assert_allclose(own, moment, 1e-9, 1e-15)
    if models["encoder"] is not None:
        assert_close(encoder_of(state.encoder), models["encoder"], "encoder")


@pytest.mark.slow
def test_scores_with_a_diverged_client_stay_as_they_were():
    federation = toy_federation(diverging=1)
    _, after = states_of(algorithm(weights="attention"), federation, 1)
    met = np.arange(5) != 1
    assert (after.logits[np.ix_(met, met)] != 0).all()
    assert not after.logits[1].any() and not after.logits[:, 1].any()


@pytest.mark.thorough
def test_who_is_late_gets_nothing_and_a_gradient_that_is_not_finite_is_no_step():
    federation = toy_federation((5, 4, 3), (3, 3, 3), stragglers={2: 1})
    data = federation.data
    at = np.asarray(data.validation.index)[2:4]  # those of client 1
    samples = jnp.asarray(data.samples).at[at].set(jnp.nan)
    federation = replace(federation, data=replace(data, samples=samples))
    (_, after), (record,) = run_rounds(algorithm(), federation, 1, scored=())
    assert record["down"][:, 0].tolist() == [2, 2, 0]
    assert after.steps.tolist() == [1, 0, 0]
    assert not after.logits[1].any() and after.logits[0].any()


@pytest.mark.thorough
def test_even_weights_of_equal_clients_with_private_heads_are_fedper():
    federation = toy_federation((5, 5, 5), (3, 3, 3), share="body")
    states = states_of(algorithm(logit_rate=0), federation)
    wanted = states_of(pfl.make_algorithm("fedper"), toy_federation((5, 5, 5), (3, 3, 3)))
    for state, other in zip(states, wanted, strict=True):
        whole = trees.join(trees.replicate(other.server, 3), other.private)
        assert_close(dict(state.models), dict(whole), "models")


@pytest.mark.thorough
def test_statistics_are_own_and_validation_is_in_evaluation_mode():
    """A round by hand: every weight is 1 / 3, and every validation batch has both samples."""
    federation = toy_federation((5, 4, 3), (3, 3, 3), model=OverflowingNormed(3, (5,)))
    _, after = states_of(algorithm(), federation, 1)
    first, alone = states_of(pfl.make_algorithm("local"), federation, 1)
    trained = dict(alone.models)
    assert_close(after.models["batch_stats"], trained["batch_stats"], "statistics", 0)
    deltas = optax.tree.sub(first.models["params"], trained["params"])
    mixed = jax.tree.map(lambda w, d: w - d.mean(axis=0), first.models["params"], deltas)
    assert_close(after.models["params"], mixed, "models")
    data = federation.data

    @jax.jit
    def slopes_of(params, statistics, inputs, labels):
        def loss(params):
            model = {"params": params, "batch_stats": statistics}
            return federation.task.loss(model, batch, train=False)[0]

        batch = pfl.training.Batch(inputs, labels, jnp.ones(2, bool))
        return -similarity.dots(deltas, jax.grad(loss)(params))

    samples, labels = np.asarray(data.samples, float), np.asarray(data.labels)
    for i in range(3):
        params, statistics = (
            jax.tree.map(lambda leaf, i=i: leaf[i], tree)
            for tree in (mixed, trained["batch_stats"])
        )
        at = np.asarray(data.validation.index)[2 * i : 2 * i + 2]
        slopes = slopes_of(params, statistics, samples[at], labels[at])
        np.testing.assert_allclose(after.mean[i], 0.1 * (slopes - slopes.mean()) / 3, 1e-9, 1e-13)


def test_the_nearest_go_by_permanent_ids_where_logits_are_equal():
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 3, size=(7, 7)).astype(float)  # many ties
    order = rng.permutation(7)  # clients at these ids
    for count in (1, 3, 6):
        result = nearest(
            jnp.asarray(logits[order][:, order]), jnp.arange(7), jnp.asarray(order), count
        )
        wanted = [l2c.neighbours_to_keep(logits[i], i, count)[order] for i in order]
        np.testing.assert_array_equal(result, wanted)


def test_neighbours_by_default_are_a_tenth_of_all():
    ids, even = jnp.arange(31), jnp.zeros((31, 31))
    cohort = SimpleNamespace(rows=ids)
    ctx = SimpleNamespace(num_clients=31, t=jnp.int32(3), cohort=cohort, ids=ids)
    for after, left in ((3, 4), (4, 31)):
        active = algorithm(prune_after=after).pruned(ctx, even, even == 0)
        np.testing.assert_array_equal(active.sum(axis=1), left)
        assert jnp.diagonal(active).all()
    few = algorithm(prune_after=0).pruned(ctx, even, jnp.eye(31) > 0)
    np.testing.assert_array_equal(few, np.eye(31))  # who listens to few is never asked again


def test_defaults_are_those_of_the_reference():
    own = algorithm().hyperparameters()
    assert (own.pop("neighbours"), own.pop("weights")) == (0, "learned")  # the reference's None
    stated = inspect.signature(l2c.run).parameters
    assert own == {name: stated[name].default for name in own}


def test_all_others_may_be_neighbours():
    algorithm(neighbours=4).check(toy_federation())
