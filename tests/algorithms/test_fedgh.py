"""FedGH against its reference, and its new clients."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.utils import keys
from tests.algorithms.comparison import comparison
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


def new_clients(one, made):
    """They train a body for a round, from the mean of all bodies, and use the server's head."""
    last, (batches, given) = one.states[-1], one.newcomers()
    head = last.head["params"]["head"]
    mean = jax.tree.map(lambda leaf: leaf.mean(0), last.bodies["params"]["hidden"])
    start = {"hidden": mean, "head": head}
    return [{**sgd(start, own, *given), "head": head} for own in batches]


test_reference, test_contract = comparison(
    "fedgh",
    fedgh.run,
    settings={"server_rate": 0.5, "server_epochs": 2, "server_batch": 4},
    ours=("server_epochs",),
    given=lambda one: {"orders": orders_of(one.case, one.settings["server_epochs"])},
    states={"head.params.head": "head", "bodies.params.hidden": "personalized.hidden"},
    scores={"personalized": "personalized"},
    copies=(0, 1),
    check=check_numbers,
    new_clients=new_clients,
)
