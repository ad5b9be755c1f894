"""MR-MTL against its reference; private layers and new clients."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import PATTERNS, Case, assert_models
from tests.engine.finals import final_in
from tests.references import mrmtl


def algorithm(**settings):
    return pfl.make_algorithm("mrmtl", settings)


test_reference, test_contract = comparison(
    "mrmtl",
    mrmtl.run,
    settings={"proximal_weight": 0.7},
    variants={"size": {}, "uniform": {"weighting": "uniform"}},
    states={"server": "global", "own": "personalized"},
    scores={"global": "global", "personalized": "personalized"},
)


@pytest.mark.costly
def test_mrmtl_does_not_pull_private_layers():
    federation = toy_federation((6,), (3,), share="body", batch_size=6, local_steps=2)
    pulled, free = (states_of(algorithm(proximal_weight=p), federation, 1)[1] for p in (0.7, 0.0))
    assert_close(pulled.server["params"]["fc_0"], jax.tree.map(
        lambda leaf: leaf[0], pulled.own["params"]["fc_0"]), "body")  # fmt: skip
    assert not np.array_equal(
        pulled.own["params"]["fc_0"]["kernel"], free.own["params"]["fc_0"]["kernel"]
    )
    assert not jax.tree.leaves(pulled.server["params"]["head"])


@pytest.mark.costly
def test_new_clients_of_mrmtl():
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
