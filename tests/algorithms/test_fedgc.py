"""FedGC against its reference, and its predictions."""

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_steps, over, stack
from tests.engine.finals import final_in
from tests.references import fedgc
from tests.references.network import cross_entropy

VARIANTS = {"default": {}, "far": {"weight": 0.2}}


def algorithm(**settings):
    return pfl.make_algorithm("fedgc", settings)


@over(PATTERNS, [("partial-map", "far"), ("full-vmap", "default")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    common = case.common()
    wanted = fedgc.run(case.initial(), case.clients(), 3, **common, **settings)
    held = wanted[0]["held"]
    assert not held.all() and held.any(axis=1).all()
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        own = models["personalized"]
        assert_close(state.body["params"]["hidden"], models["body"]["hidden"], f"body in {t}")
        assert_close(state.heads["params"]["head"], stack(own)["params"]["head"], f"heads in {t}")
        assert_steps(record, case.cohorts[t], common["batches"][t])
        if case.scored:
            scored = [
                (fedgc.own_logits(model, case.x[at], held[i]), case.y[at], held[i])
                for i, model in enumerate(own)
                for at in [case.samples(i, "test")]
            ]
            losses = record["scores"]["personalized/test/loss"]
            for loss, (logits, y, classes) in zip(losses, scored, strict=True):
                if len(y) and classes[y].all():
                    np.testing.assert_allclose(loss, cross_entropy(logits, y)[0], 1e-9)
        share = case.present(t) * case.sizes
        np.testing.assert_allclose(record["matrices"]["mixing"], [share / share.sum()], 1e-9)
    if pattern == "partial-map":
        assert_new_clients(case, settings, states[-1], held)


def assert_new_clients(case, settings, state, held):
    """They train for a round from the mean of all heads, and predict their own classes."""
    state = jax.tree.map(np.asarray, state)
    head = jax.tree.map(lambda leaf: leaf.mean(0), state.heads["params"]["head"])
    start = {"hidden": state.body["params"]["hidden"], "head": head}
    batches = case.batches("personalize", starts=case.everyone)[-1]
    final = final_in(state, algorithm(**settings), case.federation, case.rounds)
    made = final.personalize(case.federation)["params"]
    for i, own in enumerate(batches):
        model = fedgc.train(start, own, case.x, case.y, case.rates[-1], held[i])
        bias = np.where(held[i], model["head"]["bias"], -1e9)
        wanted = {**model, "head": {**model["head"], "bias": bias}}
        ours = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[0, i], made)
        assert_close(ours, wanted, f"new client {i}")


def test_models_of_some_clients_predict_their_own_classes():
    federation = toy_federation(model=TanhNetwork())
    state = states_of(algorithm(), federation, 1)[-1]
    ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(1), jnp.int32(1), None)
    every, some = (
        algorithm().models(ctx, state, jnp.asarray(rows))["personalized"]["params"]["head"]["bias"]
        for rows in (range(5), (3, 0))
    )
    np.testing.assert_array_equal(some, every[jnp.asarray([3, 0])])


def test_without_the_regularizer_absent_clients_keep_their_heads():
    federation = toy_federation(participation=0.2)
    before, after = states_of(algorithm(weight=0.0), federation, 1)
    biases = (state.heads["params"]["head"]["kernel"] for state in (before, after))
    assert np.not_equal(*biases).any(axis=(1, 2)).sum() == 1
