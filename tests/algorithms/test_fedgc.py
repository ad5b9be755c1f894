"""FedGC against its reference, and its predictions."""

import jax
import numpy as np

from tests.algorithms.comparison import Round, comparison
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


def assert_some_lack_classes(one):
    held = one.wanted[0]["held"]
    assert not held.all() and held.any(axis=1).all()


def new_clients(one, made):
    """They train for a round from the mean of all heads, and predict their own classes."""
    last, (batches, given) = one.states[-1], one.newcomers()
    head = jax.tree.map(lambda leaf: leaf.mean(0), last.heads["params"]["head"])
    start = {"hidden": last.body["params"]["hidden"], "head": head}
    return [
        predicting(fedgc.train(start, own, *given, held), held)
        for own, held in zip(batches, one.wanted[0]["held"], strict=True)
    ]


test_reference, test_contract = comparison(
    "fedgc",
    run,
    settings={"weight": 0.2},
    states={"body.params.hidden": "body.hidden", "heads.params.head": "personalized.head"},
    scores={"personalized": "predicting"},
    check=Round.assert_mean,
    finish=assert_some_lack_classes,
    new_clients=new_clients,
)
