"""PFL-DA against its reference, and its new clients."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_models
from tests.engine.finals import final_in
from tests.references import pfl_da
from tests.references.network import loss_and_gradient


def check(now):
    """The shared head under each client's body is scored too."""
    shared = [{**model, "head": now.wanted["head"]} for model in now.wanted["personalized"]]
    assert_losses(now.record, now.case, "shared_head", shared)
    now.assert_mean()


def finish(one):
    if one.pattern == "full-vmap":
        taken = sum(record["clients"]["local_steps"].sum() for record in one.records)
        assert one.algorithm.max_gradients(one.case.federation, 3).sum() == taken
    if one.variant == "first-step":
        assert_training_loss(one)


def assert_training_loss(one):
    """It is the mean of both heads' losses, here in the second round."""
    case, now, losses = one.case, one.rounds()[1], []
    i = now.cohort[0]
    own, generic = one.wanted[0]["personalized"][i], one.wanted[0]["head"]
    batches, given = now.batches()[i], (case.x, case.y, case.rates[1], 0.4, "first_step")
    for k, at in enumerate(batches):
        model, head = pfl_da.local_round(own, own["head"], generic, batches[:k], *given)
        after, _ = pfl_da.local_round(own, own["head"], generic, batches[: k + 1], *given)
        for seen in (model, {**after, "head": head}):
            losses.append(loss_and_gradient(seen, case.x[at], case.y[at])[0])
    assert now.clients["train_loss"][i] == pytest.approx(np.mean(losses), rel=1e-9)


SETTINGS = {"generic_weight": 0.4}

test_reference, test_contract = comparison(
    "pfl_da",
    pfl_da.run,
    settings=SETTINGS,
    variants={
        "first-step": {},
        "every-step": {"mixed": "every_step", "weighting": "size"},
    },
    states={
        "server.params.head": "head",
        "heads.params.head": "personalized.head",
        "private.params.hidden": "personalized.hidden",
    },
    scores={"personalized": "personalized"},
    steps=("batches", "batches"),
    check=check,
    finish=finish,
)


def test_remarks():
    """With a generic weight of 1 in each step nothing of the own head remains."""
    federation = Case(1, scored=False).federation
    for mixed, weight, count in (("first_step", 1.0, 0), ("every_step", 0.99, 0),
                                 ("every_step", 1.0, 1)):  # fmt: skip
        ours = pfl.make_algorithm("pfl_da", {"generic_weight": weight, "mixed": mixed})
        assert len(ours.remarks(federation)) == count


@pytest.mark.costly
def test_new_clients_of_pfl_da():
    """They train a round."""
    case = Case(**PATTERNS["full-vmap"])
    ours = pfl.make_algorithm("pfl_da", SETTINGS)
    state = case.states_of(ours)[-1]
    mean = jax.tree.map(lambda leaf: np.asarray(leaf).mean(0), state.private["params"]["hidden"])
    start = {"hidden": mean, "head": jax.tree.map(np.asarray, state.server["params"]["head"])}
    new = final_in(state, ours, case.federation, case.rounds).personalize(case.federation)
    batches = case.batches("personalize")[-1:]
    last = case.setting(initial=start, rounds=1, batches=batches, learning_rate=case.rates[-1:])
    (wanted,) = pfl_da.run(last, **SETTINGS)
    assert_models(jax.tree.map(lambda leaf: leaf[0], new), wanted["personalized"], "new clients")
