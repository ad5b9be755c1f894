"""FedLC against its reference, its limits, and classes that a client lacks."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_models,
    assert_steps,
    over,
    sampled_federation,
)
from tests.engine.finals import final_in
from tests.references import fedlc

VARIANTS = {"all": {"tau": 0.5}, "others": {"tau": 0.02, "denominator": "others"}}


def algorithm(**settings):
    return pfl.make_algorithm("fedlc", settings)


@over(PATTERNS, [("partial-map", "all"), ("full-vmap", "others")], VARIANTS)
def test_reference(pattern, variant):
    settings = VARIANTS[variant]
    case = Case(**PATTERNS[pattern])
    common = case.common()
    wanted = fedlc.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        case.assert_one_model(record, models["global"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)


def test_without_margins_it_is_fedavg():
    federation = sampled_federation()
    states, _ = run_rounds(algorithm(tau=0), federation)
    wanted, _ = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, other.server, "server")
    assert algorithm(tau=0, denominator="others").remarks(federation) == []  # it is not FedAvg


def test_a_class_that_a_client_lacks_does_not_move():
    """FedAvg pushes its bias down."""
    federation = toy_federation((1,), (3,), validation_size=0)
    before, after = states_of(algorithm(), federation, 1)
    own, bias = int(federation.data.labels[0]), after.server["params"]["head"]["bias"]
    moved = abs(bias - before.server["params"]["head"]["bias"])
    np.testing.assert_allclose(np.delete(moved, own), 0, atol=1e-30)
    new = final_in(after, algorithm(), federation, 1).personalize(federation)
    moved = abs(np.asarray(new["params"]["head"]["bias"])[0, 0] - bias)
    np.testing.assert_allclose(np.delete(moved, own), 0, atol=1e-30)


@pytest.mark.thorough
def test_new_clients_train_with_margins():
    case = Case(**PATTERNS["full-vmap"])
    ours = algorithm(tau=0.5)
    state = case.states_of(ours)[-1]
    server = jax.tree.map(np.asarray, state.server["params"])
    new = final_in(state, ours, case.federation, case.rounds).personalize(case.federation)
    batches, rate = case.batches("personalize")[-1], case.rates[-1]
    given = {"x": case.x, "y": case.y, "sizes": case.sizes, "learning_rate": [rate]}
    wanted = [
        fedlc.run(server, case.clients(), 1, **given, cohorts=[[i]], batches=[batches], tau=0.5)
        for i in range(case.num_clients)
    ]
    models = [history[0]["global"] for history in wanted]
    assert_models(jax.tree.map(lambda leaf: leaf[0], new), models, "new clients")
