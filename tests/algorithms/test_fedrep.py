"""FedRep against its reference, its phases, and its new clients."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import PATTERNS, Case, assert_losses, maker, mean_loss, stack
from tests.algorithms.norms import ConvNorm
from tests.engine.finals import final_in
from tests.references import fedrep
from tests.references.local_sgd import sgd

algorithm = maker("fedrep")


def epochs(case, count):
    return replace(case.federation.schedule, epochs=count)


def batches_of_heads(one):
    algorithm, case, last = one.algorithm, one.case, None
    heads = case.batches("head", epochs(case, algorithm.head_epochs))
    if algorithm.final_head_epochs:
        last = case.batches("adapt", epochs(case, algorithm.final_head_epochs))[-1]
    return {
        "head_batches": heads,
        "final_head_batches": last,
        "weighting": algorithm.weighting,
    }


def assert_record(now):
    now.assert_mean()
    final = now.compared.algorithm.final_head_epochs
    every_round = "before" if final else "personalized"
    assert_losses(now.record, now.case, every_round, now.wanted["personalized"])
    if final and now.case.scored:
        if "tuned" in now.wanted:
            assert_losses(now.record, now.case, "personalized", now.wanted["tuned"])
        else:
            assert np.isnan(now.record["scores"]["personalized/test/loss"]).all()


def assert_recorded_losses(one):
    """Means over the steps of both phases, of the members' models before the round."""
    case, before = one.case, [one.case.initial()] * one.case.num_clients
    for now in one.rounds():
        heads, bodies = now.batches("head_batches"), now.batches()
        for i in now.cohort:
            model, rate = before[i], case.rates[now.t]
            phases = (heads[i], rate, ["head"]), (bodies[i], rate, fedrep.body_of(model))
            wanted = mean_loss(case, model, *phases)
            np.testing.assert_allclose(now.clients["train_loss"][i], wanted, 1e-9)
        before = now.wanted["personalized"]


test_reference, test_contract = comparison(
    "fedrep",
    fedrep.run,
    variants={
        "by size, final epochs": {"head_epochs": 3, "weighting": "size", "final_head_epochs": 2},
        "authors": {},
        "no head epochs": {"head_epochs": 0},
    },
    ours=("head_epochs", "final_head_epochs"),
    given=batches_of_heads,
    joined="personalized",
    steps=("batches", "head_batches"),
    check=assert_record,
    finish=assert_recorded_losses,
)


@cache
def trained():
    case = Case(**PATTERNS["partial-map"])
    return case, case.states_of(algorithm(head_epochs=1))[-1]


@pytest.mark.costly
@pytest.mark.parametrize(("tau", "count"), [(2, 2), (0, 1)])
def test_new_clients_learn_a_head_on_the_servers_body(tau, count):
    case, state = trained()
    final = final_in(state, algorithm(head_epochs=tau), case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    batches = case.batches("personalize", epochs(case, count))[-1]
    body = jax.tree.map(np.asarray, state.server["params"]["hidden"])
    start = {"hidden": body, "head": case.initial()["head"]}
    wanted = [sgd(start, own, case.x, case.y, case.rates[-1], layers=["head"]) for own in batches]
    assert_close(made, stack(wanted), "new clients")


@pytest.mark.costly
def test_local_steps_of_new_clients():
    case, state = trained()
    final = final_in(state, algorithm(), case.federation, case.rounds)
    counted = case.federation.with_training(local_steps=0)
    heads = final.personalize(counted)["params"]["head"]["kernel"][0]
    assert (heads == case.initial()["head"]["kernel"]).all()


def test_local_steps_are_those_of_the_body():
    facts = round_facts(one_run(algorithm(head_epochs=2)), toy_federation(local_steps=3))
    assert {(one.epochs, one.steps) for one in facts.schedules} == {(2, None), (1, 3)}


@pytest.mark.costly
def test_running_statistics_move_in_both_phases():
    federation = toy_federation(model=ConvNorm(), local_epochs=0)
    before, after = states_of(algorithm(), federation, 1)
    assert_close(after.server["params"], before.server["params"], "body", 1e-12)
    for name in ("mean", "var"):
        statistics = [s.server["batch_stats"]["bn"][name] for s in (before, after)]
        assert abs(statistics[0] - statistics[1]).max() > 1e-3
