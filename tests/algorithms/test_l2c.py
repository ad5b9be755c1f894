"""L2C against its reference, pruning, and what is not mixed."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
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
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import assert_steps, maker
from tests.references import l2c, l2c_encoder

algorithm = maker("l2c")


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


def given(one):
    ids = np.asarray(one.case.federation.data.ids)
    options = {"validation_batches": validation_batches(one.case), "ids": ids}
    if one.algorithm.weights == "attention":
        encoder = one.states[0].encoder
        kernel = encoder[1][0]["kernel"]  # of the head's kernel, rows of 5 inputs
        assert kernel.shape == (5, 10) and 0.4 < abs(kernel).max() <= 5**-0.5
        options["encoder"] = encoder_of(encoder)
    return options


def assert_record(now):
    assert_moments(now.state, now.wanted)
    walks, attention = now.batches("validation_batches"), now.settings.get("weights")
    taken = walks if now.settings.get("whole_pass") else [own[:1] for own in walks]
    assert_steps(now.record, now.cohort, now.batches(), taken)
    heard = (now.wanted["active"] & now.present).sum(axis=1) * now.present
    now.assert_copies(now.present, heard)
    assert ("numbers_up" in now.clients) == (attention is not None)
    for way in ("up", "down") if attention else ():
        sent = (1 + 5 + 1 + 4) * 10 + 4 * (10 + 10 * 20 + 20)  # an encoder for each tensor
        np.testing.assert_array_equal(now.clients[f"numbers_{way}"], sent * now.present)


# Clients are pruned in round 2 of 3. Minibatches have 4 samples: passes over the validation samples
# have 2, 1, 0, 3 and 1 steps.
PRUNED = {"logit_rate": 0.2, "prune_after": 1, "neighbours": 2}
test_reference, test_contract = comparison(
    "l2c",
    l2c.run,
    options={"validation_size": 2},
    variants={
        "pruned": PRUNED,
        "whole pass": Variant(
            {"logit_rate": 0.2, "whole_pass": True}, options={"validation_size": (6, 2, 0, 9, 4)}
        ),
        "attention": {"logit_rate": 0.2, "prune_after": 1, "weights": "attention"},
    },
    ours=("weights",),
    given=given,
    states={"models": "personalized", "logits": "logits", "active": "active"},
    scores={"personalized": "personalized"},
    matrices={"mixing": "weights"},
    steps=(),
    copies=None,
    check=assert_record,
)


@pytest.mark.costly
def test_attention_scores_with_a_diverged_client():
    federation = toy_federation(diverging=1)
    _, after = states_of(algorithm(weights="attention"), federation, 1)
    met = np.arange(5) != 1
    assert (after.logits[np.ix_(met, met)] != 0).all()
    assert not after.logits[1].any() and not after.logits[:, 1].any()


@pytest.mark.costly
def test_late_clients_and_gradients_that_are_not_finite():
    federation = toy_federation((5, 4, 3), (3, 3, 3), stragglers={2: 1})
    data = federation.data
    at = np.asarray(data.validation.index)[2:4]  # those of client 1
    samples = jnp.asarray(data.samples).at[at].set(jnp.nan)
    federation = replace(federation, data=replace(data, samples=samples))
    (_, after), (record,) = run_rounds(algorithm(), federation, 1, scored=())
    assert record["down"][:, 0].tolist() == [2, 2, 0]
    assert after.steps.tolist() == [1, 0, 0]
    assert not after.logits[1].any() and after.logits[0].any()


@pytest.mark.costly
def test_private_heads_are_not_mixed():
    federation = toy_federation((5, 5, 5), (3, 3, 3), share="body")
    states = states_of(algorithm(logit_rate=0), federation)
    wanted = states_of(pfl.make_algorithm("fedper"), toy_federation((5, 5, 5), (3, 3, 3)))
    for state, other in zip(states, wanted, strict=True):
        whole = trees.join(trees.replicate(other.server, 3), other.private)
        assert_close(dict(state.models), dict(whole), "models")


class TrainedOnly(OverflowingNormed):
    """A network that predicts nothing in evaluation mode."""

    def __call__(self, x, train: bool = False, valid=None):
        return super().__call__(x, train, valid) * (1.0 if train else 0.0)


@pytest.mark.costly
def test_running_statistics_and_evaluation_mode():
    """Statistics are of local training, and validation losses are in evaluation mode."""
    federation = toy_federation((5, 4, 3), (3, 3, 3), model=TrainedOnly(3, (5,)))
    _, after = states_of(algorithm(), federation, 1)
    _, alone = states_of(pfl.make_algorithm("local"), federation, 1)
    assert_close(after.models["batch_stats"], alone.models["batch_stats"], "statistics", 0)
    assert not after.mean.any()


def test_nearest_breaks_ties_by_permanent_ids():
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 3, size=(7, 7)).astype(float)  # many ties
    order = rng.permutation(7)  # clients at these ids
    for count in (1, 3, 6):
        result = nearest(
            jnp.asarray(logits[order][:, order]), jnp.arange(7), jnp.asarray(order), count
        )
        wanted = [l2c.neighbours_to_keep(logits[i], i, count)[order] for i in order]
        np.testing.assert_array_equal(result, wanted)


def test_default_number_of_neighbours():
    ids, even = jnp.arange(31), jnp.zeros((31, 31))
    cohort = SimpleNamespace(rows=ids)
    ctx = SimpleNamespace(num_clients=31, t=jnp.int32(3), cohort=cohort, ids=ids)

    @jax.jit
    def pruned(one, active):
        return one.pruned(ctx, even, active)

    for after, left in ((3, 4), (4, 31)):
        active = pruned(algorithm(prune_after=after), even == 0)
        np.testing.assert_array_equal(active.sum(axis=1), left)
        assert jnp.diagonal(active).all()
    # Who listens to few is never asked again.
    np.testing.assert_array_equal(pruned(algorithm(prune_after=0), jnp.eye(31) > 0), np.eye(31))
