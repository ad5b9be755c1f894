"""Ditto against its reference, its private layers, and its new clients."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import ditto

algorithm = maker("ditto")


def personal_batches(one):
    """The pull goes to the received model: tools have been seen to pull to the changed one."""
    schedule = one.case.federation.schedule
    if "personal_epochs" in one.settings:
        schedule = replace(schedule, epochs=one.settings["personal_epochs"])
    purpose = "train" if one.settings.get("batches") == "shared" else "personal"
    return {"personal_batches": one.case.batches(purpose, schedule)}


def new_clients(one, made):
    """They train near the server's model, as if they had never taken part."""
    server, (batches, given) = one.wanted[-1]["global"], one.newcomers()
    return [ditto.personal_training(server, server, own, *given, 0.7) for own in batches]


test_reference, test_contract = comparison(
    "ditto",
    ditto.run,
    settings={"proximal_weight": 0.7},
    variants={
        "epochs": {"personal_epochs": 1},
        "own": {},
        "authors": {"batches": "shared", "weighting": "uniform"},
    },
    ours=("batches", "personal_epochs"),
    given=personal_batches,
    states={"server": "global", "own": "personalized"},
    scores={"global": "global", "personalized": "personalized"},
    steps=("batches", "personal_batches"),
    new_clients=new_clients,
)


@pytest.mark.costly
def test_private_layers_are_not_pulled():
    """With a private head v's body is held near w's body, as by FedProx; its own head is free."""
    federation = toy_federation((6,), (3,), share="body", batch_size=6, local_steps=2)
    pull = {"proximal_weight": 0.7}
    ours, held, free = (
        states_of(pfl.make_algorithm(name, settings), federation, 1)[-1]
        for name, settings in (("ditto", pull), ("fedprox", pull), ("fedavg", {}))
    )
    assert_close(ours.private, free.private, "w's head")
    assert_close(ours.own["params"]["head"], held.private["params"]["head"], "v's head")
    own = jax.tree.map(lambda leaf: leaf[0], ours.own["params"]["fc_0"])
    assert_close(own, held.server["params"]["fc_0"], "v's body")


@pytest.mark.costly
def test_divergence_of_the_own_model_alone():
    """An absurd pull makes a huge model in the third step, which only client 3 takes."""
    federation = toy_federation(dtype="float32", validation_size=0)
    states, (record,) = run_rounds(algorithm(proximal_weight=1e13), federation, 1, scored=())
    assert np.flatnonzero(record["clients"]["diverged"]).tolist() == [3]
    np.testing.assert_allclose(record["matrices"]["mixing"], [[7 / 15, 3 / 15, 1 / 15, 0, 4 / 15]])
    before, after = (state.own["params"]["head"]["bias"] for state in states)
    np.testing.assert_array_equal((before != after).any(axis=1), [1, 1, 1, 0, 1])


def test_personal_epochs_with_local_steps():
    federation = toy_federation(local_steps=5)
    facts = round_facts(one_run(algorithm(personal_epochs=2)), federation)
    assert {(one.steps, one.epochs) for one in facts.schedules} == {(5, 1), (None, 2)}
    assert len(round_facts(one_run(algorithm()), federation).schedules) == 1
