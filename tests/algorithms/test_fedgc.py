"""FedGC against its reference, and its predictions."""

import jax
import numpy as np

from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_models
from tests.engine.finals import final_in
from tests.references import fedgc


def predicting(model, held):
    """A client's model that gives no other class than its own."""
    bias = np.where(held, model["head"]["bias"], -1e9)
    return {**model, "head": {**model["head"], "bias": bias}}


def run(s, **options):
    """The reference, with the models that clients use."""
    history = fedgc.run(s, **options)
    for models in history:
        both = zip(models["personalized"], models["held"], strict=True)
        models["predicting"] = [predicting(model, held) for model, held in both]
    return history


def check_new_clients(one):
    """They train for a round from the mean of all heads, and predict their own classes."""
    case, held = one.case, one.wanted[0]["held"]
    assert not held.all() and held.any(axis=1).all()
    if one.pattern != "full-vmap":
        return
    state = jax.tree.map(np.asarray, one.states[-1])
    head = jax.tree.map(lambda leaf: leaf.mean(0), state.heads["params"]["head"])
    start = {"hidden": state.body["params"]["hidden"], "head": head}
    batches = case.batches("personalize", starts=case.everyone)[-1]
    final = final_in(state, one.algorithm, case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    wanted = [
        predicting(fedgc.train(start, own, case.x, case.y, case.rates[-1], own_held), own_held)
        for own, own_held in zip(batches, held, strict=True)
    ]
    assert_models(made, wanted, "new clients")


test_reference, test_contract = comparison(
    "fedgc",
    run,
    settings={"weight": 0.2},
    states={"body.params.hidden": "body.hidden", "heads.params.head": "personalized.head"},
    scores={"personalized": "predicting"},
    copies=False,
    check=lambda now: now.case.assert_mean(now.record, now.t),
    finish=check_new_clients,
)
