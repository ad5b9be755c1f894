"""FedGH against its reference, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
    stack,
)
from tests.engine.finals import final_in
from tests.references import fedgh
from tests.references.local_sgd import sgd

VARIANTS = {
    "default": {"server_rate": 0.3},
    "batches": {"server_rate": 0.5, "server_epochs": 2, "server_batch": 4},
}


def algorithm(**settings):
    return pfl.make_algorithm("fedgh", settings)


def orders_of(case, epochs):
    """The turns of the pairs (client, class), as the library draws them: [t][epoch]."""
    drawn = []
    for t in range(case.rounds):
        key = keys.of_round(case.key, "server", jnp.int32(t))
        turns = [
            np.asarray(jax.random.uniform(jax.random.fold_in(key, i), (epochs, 3), jnp.float32))
            for i in case.federation.data.ids
        ]
        pairs = [(i, c) for i in case.everyone[0] for c in range(3)]
        drawn.append(
            [
                sorted(pairs, key=lambda pair, e=epoch: turns[pair[0]][e, pair[1]])
                for epoch in range(epochs)
            ]
        )
    return drawn


@over(PATTERNS, [("partial-map", "batches"), ("full-vmap", "default")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    epochs = settings.get("server_epochs", 1)
    given = {name: value for name, value in settings.items() if name != "server_epochs"}
    common = case.common(orders=orders_of(case, epochs))
    wanted = fedgh.run(case.initial(), case.clients(), 3, **common, **given)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        own = models["personalized"]
        assert_close(state.head["params"]["head"], models["head"], f"head in round {t}")
        bodies = stack(own)["params"]["hidden"]
        assert_close(state.bodies["params"]["hidden"], bodies, f"bodies in round {t}")
        assert_losses(record, case, "personalized", own)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        classes = [
            len(set(case.y[c["samples"]])) if i in case.cohorts[t] else 0
            for i, c in enumerate(case.clients())
        ]
        np.testing.assert_array_equal(record["clients"]["numbers_up"], 5 * np.array(classes))
    if pattern == "partial-map":
        assert_new_clients(case, settings, states[-1])


def assert_new_clients(case, settings, state):
    """They train a body for a round, from the mean of all bodies, and use the server's head."""
    state = jax.tree.map(np.asarray, state)
    head = state.head["params"]["head"]
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.bodies["params"]["hidden"])
    batches = case.batches("personalize", starts=case.everyone)[-1]
    wanted = [
        {**sgd({"hidden": mean, "head": head}, own, case.x, case.y, case.rates[-1]), "head": head}
        for own in batches
    ]
    final = final_in(state, algorithm(**settings), case.federation, case.rounds)
    made = final.personalize(case.federation)
    assert_models(jax.tree.map(lambda leaf: leaf[0], made), wanted, "new clients")


def test_a_private_head_is_refused():
    with pytest.raises(pfl.InputError, match=r"nothing else, and .*head.* is private"):
        pfl.Simulation(algorithm(), toy_federation(share="none")).check()


def test_without_server_steps_the_head_stays():
    federation = toy_federation()
    before, *_, after = states_of(algorithm(server_rate=0.0), federation, 2)
    assert_close(after.head, before.head, "head", 0)


def test_who_diverges_keeps_the_body_and_sends_nothing():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=3)
    before, after = states_of(algorithm(), federation, 1)
    bodies = (state.bodies["params"]["fc_0"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*bodies).any(axis=1), [1, 1, 1, 0, 1])
    assert np.isfinite(after.head["params"]["head"]["kernel"]).all()
