"""GPFL against its reference, what is scored, and what is sent."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.algorithms.gpfl import norm
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.comparison import comparison
from tests.references import gpfl
from tests.references.network import cross_entropy

SETTINGS = {"weight": 0.7, "module_decay": 0.1}


def named(params):
    """One model of the library by the reference's names."""
    params = {name: part for name, part in params.items() if part is not None}
    params = jax.tree.map(np.asarray, params)
    valve, e = params.pop("valve"), params.pop("class_embeddings")
    params.pop("class_shares", None)
    return {**params, **valve, "embeddings": {"e": e}}


def first_model(one):
    """The network's layers are those of the plain network."""
    shared, case = one.states[0].server["params"], one.case
    heads = one.states[0].private["params"]["head"]
    initial = named({**shared, "head": jax.tree.map(lambda leaf: leaf[0], heads)})
    assert_close({k: initial[k] for k in ("head", "hidden")}, case.initial(), "the network's", 0)
    assert abs(np.std(initial["embeddings"]["e"]) - 1) < 0.5
    return {"initial": initial}


def assert_record(now):
    now.assert_mean()
    case, models = now.case, now.wanted
    assert_close(named(now.state.server["params"]), models["global"], f"shared in round {now.t}")
    for i in range(case.num_clients if case.scored else 0):
        at, loss = case.samples(i, "test"), np.nan
        if len(at):
            scores = gpfl.logits(models["personalized"][i], case.x[at], models["shares"][i])
            loss = cross_entropy(scores, case.y[at])[0]
        found = now.record["scores"]["personalized/test/loss"][i]
        np.testing.assert_allclose(found, loss, 1e-9)


def check_new_clients(one, made):
    """They train from the mean of all heads, and with their own class shares."""
    last, (batches, given) = one.states[-1], one.newcomers()
    private = last.private["params"]
    mean = jax.tree.map(lambda leaf: leaf.mean(0), private["head"])
    start = named({**last.server["params"], "head": mean})
    for i, own in enumerate(batches):
        share = private["class_shares"][i]
        wanted = gpfl.train(start, own, *given[:2], share, given[2], *SETTINGS.values())
        ours = jax.tree.map(lambda leaf, i=i: leaf[i], made["params"])
        assert_close(named(ours), wanted, f"new client {i}")
        np.testing.assert_allclose(ours["class_shares"], share, 1e-12)


test_reference, test_contract = comparison(
    "gpfl",
    gpfl.run,
    settings=SETTINGS,
    given=first_model,
    states={"private.params.class_shares": "shares", "private.params.head": "personalized.head"},
    check=assert_record,
    new_clients=check_new_clients,
)


def test_norm_has_a_gradient_at_zero():
    gradient = jax.jit(jax.grad(norm))
    np.testing.assert_array_equal(gradient(jnp.zeros(2)), 0)
    np.testing.assert_allclose(gradient(jnp.array([3.0, 4.0])), [0.6, 0.8], 1e-12)
