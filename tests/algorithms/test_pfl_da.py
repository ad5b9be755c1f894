"""PFL-DA against its reference, and its limits."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    QUICK,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
    stack,
)
from tests.engine.finals import final_in
from tests.references import pfl_da
from tests.references.local_sgd import sgd
from tests.references.network import loss_and_gradient


def algorithm(**settings):
    return pfl.make_algorithm("pfl_da", settings)


@over(PATTERNS, QUICK)
def test_reference(pattern):
    case = Case(**PATTERNS[pattern])
    common = case.common(head_batches=case.batches("head"))
    wanted = pfl_da.run(case.initial(), case.clients(), 3, **common, proximal_weight=0.7)
    states, records = case.run_rounds(algorithm(proximal_weight=0.7))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        own = models["personalized"]
        assert_close(state.server["params"]["head"], models["head"], "shared head")
        assert_close(state.heads["params"]["head"], stack(own)["params"]["head"], "own heads")
        bodies = stack(own)["params"]["hidden"]
        assert_close(state.private["params"]["hidden"], bodies, "bodies")
        assert_losses(record, case, "personalized", own)
        shared = [{**model, "head": models["head"]} for model in own]
        assert_losses(record, case, "shared_head", shared)
        assert_steps(record, case.cohorts[t], common["batches"][t], common["head_batches"][t])
        case.assert_whole_models(record, t)
    if pattern == "full-vmap":
        taken = sum(record["clients"]["local_steps"].sum() for record in records)
        assert algorithm().max_gradients(case.federation, 3).sum() == taken
    assert_training_loss(case, common, wanted, records)


def assert_training_loss(case, common, wanted, records):
    """It is the mean of both phases, here in the second round."""
    i = case.cohorts[1][0]
    own, shared, losses = wanted[0]["personalized"][i], wanted[0]["head"], {"head": [], "body": []}
    given, model = (case.x, case.y, common["learning_rate"][1]), own
    for at in common["head_batches"][1][i]:
        losses["head"].append(loss_and_gradient(model, case.x[at], case.y[at])[0])
        model = {**own, "head": pfl_da.own_head(own, model["head"], shared, [at], *given, 0.7)}
    model = {**own, "head": shared}
    for at in common["batches"][1][i]:
        losses["body"].append(loss_and_gradient(model, case.x[at], case.y[at])[0])
        model = sgd(model, [at], *given)
    mean = (np.mean(losses["head"]) + np.mean(losses["body"])) / 2
    assert records[1]["clients"]["train_loss"][i] == pytest.approx(mean, rel=1e-9)


def test_new_clients_train_a_round():
    case = Case(**PATTERNS["full-vmap"])
    ours = algorithm(proximal_weight=0.7)
    state = case.states_of(ours)[-1]
    mean = jax.tree.map(lambda leaf: np.asarray(leaf).mean(0), state.private["params"]["hidden"])
    start = {"hidden": mean, "head": jax.tree.map(np.asarray, state.server["params"]["head"])}
    new = final_in(state, ours, case.federation, case.rounds).personalize(case.federation)
    given = {"x": case.x, "y": case.y, "sizes": case.sizes, "learning_rate": case.rates[-1:]}
    given["batches"] = case.batches()[-1:]
    given["head_batches"] = case.batches("head")[-1:]
    everyone = [list(range(case.num_clients))]
    wanted = pfl_da.run(start, case.clients(), 1, cohorts=everyone, proximal_weight=0.7, **given)
    assert_models(jax.tree.map(lambda leaf: leaf[0], new), wanted[0]["personalized"], "new clients")


@pytest.mark.thorough
def test_who_diverges_keeps_body_and_head():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=3)
    before, after = states_of(algorithm(), federation, 1)
    heads = (state.heads["params"]["head"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*heads).any(axis=1), [1, 1, 1, 0, 1])
    bodies = (state.private["params"]["fc_0"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*bodies).any(axis=1)[3], False)
