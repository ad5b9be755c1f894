"""MR-MTL against its reference, its limits, and its new clients."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_models, assert_steps, over
from tests.engine.finals import final_in
from tests.references import mrmtl

VARIANTS = {"size": {}, "uniform": {"weighting": "uniform"}}
QUICK = [("partial-map", "size"), ("full-vmap", "uniform")]


def algorithm(**settings):
    return pfl.make_algorithm("mrmtl", settings)


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    common = case.common()
    wanted = mrmtl.run(case.initial(), case.clients(), 3, **common, proximal_weight=0.7, **settings)
    states, records = case.run_rounds(algorithm(proximal_weight=0.7, **settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_models(state.own, models["personalized"], "personalized")
        case.assert_two_models(record, models)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)


@pytest.mark.thorough
def test_without_a_pull_it_is_local_training():
    federation = toy_federation(validation_size=0, local_epochs=2)
    ours, local = (
        states_of(one, federation, 3)[-1]
        for one in (
            algorithm(proximal_weight=0),
            pfl.make_algorithm("local", {"participants": "sampled"}),
        )
    )
    assert_close(ours.own, local.models, "own", 1e-12)


@pytest.mark.thorough
def test_a_pull_of_one_over_the_rate_begins_each_step_at_the_mean():
    """w_i <- w - eta g(w_i); models that all begin at w are FedAvg's after one step."""
    federation = toy_federation(validation_size=0, local_steps=1)
    ours = states_of(algorithm(proximal_weight=1 / 0.3), federation, 2)
    fedavg = states_of(pfl.make_algorithm("fedavg"), federation, 1)
    assert_close(ours[1].server, fedavg[1].server, "the first round")
    # In the second round a client's distance to the received mean is its gradient's norm: pulls
    # from the client's own model would leave more.
    spread = [
        sum(((own - mean[None]) ** 2).sum() for own, mean in zip(
            jax.tree.leaves(state.own), jax.tree.leaves(ours[1].server), strict=True))
        for state in (ours[2], states_of(algorithm(proximal_weight=0), federation, 2)[2])
    ]  # fmt: skip
    assert spread[0] < spread[1]


@pytest.mark.thorough
def test_private_layers_are_not_pulled():
    federation = toy_federation((6,), (3,), share="body", batch_size=6, local_steps=2)
    pulled, free = (states_of(algorithm(proximal_weight=p), federation, 1)[1] for p in (0.7, 0.0))
    assert_close(pulled.server["params"]["fc_0"], jax.tree.map(
        lambda leaf: leaf[0], pulled.own["params"]["fc_0"]), "body")  # fmt: skip
    assert not np.array_equal(
        pulled.own["params"]["fc_0"]["kernel"], free.own["params"]["fc_0"]["kernel"]
    )
    assert not jax.tree.leaves(pulled.server["params"]["head"])


@pytest.mark.thorough
def test_who_diverges_keeps_its_own_model():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=3)
    states, (record,) = run_rounds(algorithm(), federation, 1, scored=())
    assert np.flatnonzero(record["clients"]["diverged"]).tolist() == [3]
    before, after = (state.own["params"]["head"]["bias"] for state in states)
    np.testing.assert_array_equal((before != after).any(axis=1), [1, 1, 1, 0, 1])


@pytest.mark.thorough
def test_new_clients_train_near_the_mean():
    case = Case(**PATTERNS["full-vmap"])
    ours = algorithm(proximal_weight=0.7)
    state = case.states_of(ours)[-1]
    server = jax.tree.map(np.asarray, state.server["params"])
    new = final_in(state, ours, case.federation, case.rounds).personalize(case.federation)
    wanted = [
        mrmtl.own_training(server, server, batches, case.x, case.y, case.rates[-1], 0.7)
        for batches in case.batches("personalize")[-1]
    ]
    assert_models(jax.tree.map(lambda leaf: leaf[0], new), wanted, "new clients")
