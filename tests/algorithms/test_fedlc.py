"""FedLC against its reference, and classes that a client lacks."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import PATTERNS, Case, assert_models
from tests.engine.finals import final_in
from tests.references import fedlc


def algorithm(**settings):
    return pfl.make_algorithm("fedlc", settings)


test_reference, test_contract = comparison(
    "fedlc",
    fedlc.run,
    variants={"all": {"tau": 0.5}, "others": {"tau": 0.02, "denominator": "others"}},
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
)


def test_remarks_without_margins():
    federation = toy_federation()
    assert algorithm(tau=0, denominator="others").remarks(federation) == []  # it is not FedAvg


@pytest.mark.costly
def test_bias_of_a_class_that_a_client_lacks():
    """FedAvg pushes its bias down."""
    federation = toy_federation((1,), (3,), validation_size=0)
    before, after = states_of(algorithm(), federation, 1)
    own, bias = int(federation.data.labels[0]), after.server["params"]["head"]["bias"]
    moved = abs(bias - before.server["params"]["head"]["bias"])
    np.testing.assert_allclose(np.delete(moved, own), 0, atol=1e-30)
    new = final_in(after, algorithm(), federation, 1).personalize(federation)
    moved = abs(np.asarray(new["params"]["head"]["bias"])[0, 0] - bias)
    np.testing.assert_allclose(np.delete(moved, own), 0, atol=1e-30)


@pytest.mark.costly
def test_personalize_trains_with_margins():
    case = Case(**PATTERNS["full-vmap"])
    ours = algorithm(tau=0.5)
    state = case.states_of(ours)[-1]
    server = jax.tree.map(np.asarray, state.server["params"])
    new = final_in(state, ours, case.federation, case.rounds).personalize(case.federation)
    batches, rate = case.batches("personalize")[-1], case.rates[-1]
    one = case.setting(initial=server, rounds=1, batches=[batches], learning_rate=[rate])
    wanted = [fedlc.run(one.but(cohorts=[[i]]), tau=0.5) for i in range(case.num_clients)]
    models = [history[0]["global"] for history in wanted]
    assert_models(jax.tree.map(lambda leaf: leaf[0], new), models, "new clients")
