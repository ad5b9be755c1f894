"""PFL-DA against its reference, and its new clients."""

import jax
import numpy as np
import pytest

from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_losses
from tests.references import pfl_da
from tests.references.network import loss_and_gradient


def check(now):
    """The shared head under each client's body is scored too."""
    shared = [{**model, "head": now.wanted["head"]} for model in now.wanted["personalized"]]
    assert_losses(now.record, now.case, "shared_head", shared)
    now.assert_mean()


def finish(one):
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


def new_clients(one, made):
    """They train a round."""
    last, (batches, (*_, rate)) = one.states[-1], one.newcomers()
    mean = jax.tree.map(lambda leaf: leaf.mean(0), last.private["params"]["hidden"])
    start = {"hidden": mean, "head": one.wanted[-1]["head"]}
    setting = one.setting.but(initial=start, rounds=1, batches=[batches], learning_rate=[rate])
    return pfl_da.run(setting, **one.options)[0]["personalized"]


test_reference, test_contract = comparison(
    "pfl_da",
    pfl_da.run,
    settings={"generic_weight": 0.4},
    variants={
        "first-step": {"mixed": "first_step"},
        "every-step": {"weighting": "size"},
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
    new_clients=new_clients,
)
