"""FedGH against its reference, and its new clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_models
from tests.engine.finals import final_in
from tests.references import fedgh
from tests.references.local_sgd import sgd


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


def check_numbers(now):
    classes = np.array([len(set(now.case.y[client["samples"]])) for client in now.case.clients()])
    np.testing.assert_array_equal(now.clients["numbers_up"], 5 * classes * now.present)


def check_new_clients(one):
    """They train a body for a round, from the mean of all bodies, and use the server's head."""
    if one.pattern != "full-vmap":
        return
    case, state = one.case, jax.tree.map(np.asarray, one.states[-1])
    head = state.head["params"]["head"]
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.bodies["params"]["hidden"])
    start = {"hidden": mean, "head": head}
    wanted = [
        {**sgd(start, own, case.x, case.y, case.rates[-1]), "head": head}
        for own in case.batches("personalize", starts=case.everyone)[-1]
    ]
    final = final_in(state, one.algorithm, case.federation, case.rounds)
    made = final.personalize(case.federation)
    assert_models(jax.tree.map(lambda leaf: leaf[0], made), wanted, "new clients")


test_reference, test_contract = comparison(
    "fedgh",
    fedgh.run,
    settings={"server_rate": 0.5, "server_epochs": 2, "server_batch": 4},
    ours=("server_epochs",),
    given=lambda one: {"orders": orders_of(one.case, one.settings["server_epochs"])},
    states={"head.params.head": "head", "bodies.params.hidden": "personalized.hidden"},
    scores={"personalized": "personalized"},
    copies=False,
    check=check_numbers,
    finish=check_new_clients,
)


def test_a_private_head_is_refused():
    with pytest.raises(pfl.InputError, match=r"nothing else, and .*head.* is private"):
        pfl.Simulation(pfl.make_algorithm("fedgh"), toy_federation(share="none")).check()
