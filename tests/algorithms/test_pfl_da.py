"""PFL-DA against its reference, and its new clients."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_models
from tests.engine.finals import final_in
from tests.references import pfl_da
from tests.references.local_sgd import sgd
from tests.references.network import loss_and_gradient


def head_batches(one):
    return {"head_batches": one.case.batches("head")}


def check(now):
    """The shared head under each client's body is scored too."""
    shared = [{**model, "head": now.wanted["head"]} for model in now.wanted["personalized"]]
    assert_losses(now.record, now.case, "shared_head", shared)


def finish(one):
    if one.pattern == "full-vmap":
        taken = sum(record["clients"]["local_steps"].sum() for record in one.records)
        assert one.algorithm.max_gradients(one.case.federation, 3).sum() == taken
    assert_training_loss(one)


def assert_training_loss(one):
    """It is the mean of both phases, here in the second round."""
    case, now = one.case, one.rounds()[1]
    i = now.cohort[0]
    own, shared = one.wanted[0]["personalized"][i], one.wanted[0]["head"]
    given, model, losses = (case.x, case.y, case.rates[1]), own, {"head": [], "body": []}
    for at in now.batches("head_batches")[i]:
        losses["head"].append(loss_and_gradient(model, case.x[at], case.y[at])[0])
        model = {**own, "head": pfl_da.own_head(own, model["head"], shared, [at], *given, 0.7)}
    model = {**own, "head": shared}
    for at in now.batches()[i]:
        losses["body"].append(loss_and_gradient(model, case.x[at], case.y[at])[0])
        model = sgd(model, [at], *given)
    mean = (np.mean(losses["head"]) + np.mean(losses["body"])) / 2
    assert now.clients["train_loss"][i] == pytest.approx(mean, rel=1e-9)


test_reference, test_contract = comparison(
    "pfl_da",
    pfl_da.run,
    settings={"proximal_weight": 0.7},
    given=head_batches,
    states={
        "server.params.head": "head",
        "heads.params.head": "personalized.head",
        "private.params.hidden": "personalized.hidden",
    },
    scores={"personalized": "personalized"},
    steps=("batches", "head_batches"),
    check=check,
    finish=finish,
)


@pytest.mark.costly
def test_new_clients_of_pfl_da():
    """They train a round."""
    case = Case(**PATTERNS["full-vmap"])
    ours = pfl.make_algorithm("pfl_da", {"proximal_weight": 0.7})
    state = case.states_of(ours)[-1]
    mean = jax.tree.map(lambda leaf: np.asarray(leaf).mean(0), state.private["params"]["hidden"])
    start = {"hidden": mean, "head": jax.tree.map(np.asarray, state.server["params"]["head"])}
    new = final_in(state, ours, case.federation, case.rounds).personalize(case.federation)
    last = case.setting(
        initial=start, rounds=1, batches=case.batches()[-1:], learning_rate=case.rates[-1:]
    )
    head_batches = case.batches("head")[-1:]
    (wanted,) = pfl_da.run(last, head_batches=head_batches, proximal_weight=0.7)
    assert_models(jax.tree.map(lambda leaf: leaf[0], new), wanted["personalized"], "new clients")
