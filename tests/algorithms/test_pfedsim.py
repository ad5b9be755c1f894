"""pFedSim against its reference, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.pfedsim import attention, class_cosines
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
    sampled_federation,
)
from tests.references import pfedsim

ROUNDS = 4  # in the third one, similarities first count
VARIANTS = {"quarter": {"warmup_fraction": 0.3}, "none": {"warmup_fraction": 0.0}}


def algorithm(**settings):
    return pfl.make_algorithm("pfedsim", settings)


@over(PATTERNS, [("partial-map", "quarter"), ("full-vmap", "none")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(rounds=ROUNDS, **PATTERNS[pattern]), VARIANTS[variant]
    common, warm = case.common(), int(ROUNDS * settings["warmup_fraction"])
    wanted = pfedsim.run(case.initial(), case.clients(), ROUNDS, **common, warm=warm)
    states, records = case.run_rounds(algorithm(**settings))
    mixed = 0
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        np.testing.assert_allclose(state.similarity, models["similarity"], 1e-9)
        joined = np.flatnonzero(state.joined)
        kept = [models["personalized"][i] for i in joined]
        if len(joined):
            own = jax.tree.map(lambda leaf, at=joined: leaf[at], state.models)
            assert_models(own, kept, "own")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        expected = np.eye(case.num_clients)
        for i, row in models["weights"].items():
            expected[i] = expected[i] if row is None else row
            mixed += row is not None
        present = case.present(t)
        if t < warm:
            shares = present * case.sizes
            expected[present] = shares / shares.sum()
        np.testing.assert_allclose(record["matrices"]["mixing"], expected, 1e-9, 1e-12)
        np.testing.assert_array_equal(record["up"], np.repeat(present[:, None], 2, axis=1))
        blocks = case.federation.plan.blocks
        down = [present if block != "head" else present & (t < warm) for block in blocks]
        np.testing.assert_array_equal(record["down"], np.stack(down, axis=1))
    assert mixed or pattern == "single"


def test_a_warm_up_without_end_is_fedavg_to_the_bit():
    federation = sampled_federation()
    states, records = run_rounds(algorithm(warmup_fraction=1), federation)
    wanted, scored = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, other.server, "server", 0)
    for record, other in zip(records, scored, strict=True):
        name = "personalized/test/loss"
        np.testing.assert_array_equal(record["scores"][name], other["scores"][name])


def test_members_that_diverge_have_downloaded():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=3)
    _, (record,) = run_rounds(algorithm(), federation, 1)
    np.testing.assert_array_equal(record["down"][:, 0], np.ones(5))


def test_weights():
    """Equal classifiers have a finite weight; without a known pair there is none."""
    known = jnp.asarray([[0.2, 0.5, 0.0, 1.0], [0.3, 0.3, 0.9999, 0.1], [0.0, 0.0, 0.8, 0.0]])
    found = attention(known, jnp.asarray([0, 1, 2]))
    for i, row in enumerate(np.asarray(known)):
        wanted = pfedsim.weights(row, i)
        np.testing.assert_allclose(found[i], 0 if wanted is None else wanted, 1e-4)
    assert found[0, 0] == found[0, 3] and not found[2].any()


def test_opposite_classifiers_are_not_similar():
    case = Case(rounds=1)
    ctx = pfl.Context(case.federation, case.key, jnp.int32(0), jnp.int32(1), None)
    model = ctx.initial_model()
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), model)
    np.testing.assert_allclose(class_cosines(ctx, both), np.eye(2), atol=1e-12)


def test_a_reader_is_told_how_long_the_warm_up_is():
    one = algorithm(warmup_fraction=0.25)
    assert one.round_remarks(sampled_federation(), 10) == ["the first 2 of 10 rounds are FedAvg's"]


@pytest.mark.thorough
def test_new_clients_begin_with_the_servers_model():
    case = Case(rounds=3)
    state = case.states_of(algorithm(warmup_fraction=0.4))[-1]
    ctx = pfl.Context(case.federation, case.key, jnp.int32(2), jnp.int32(3), case.cohort(2))
    start = algorithm().new_client_start(ctx, state)
    assert_close(start["params"], state.server["params"], "start", 0)
