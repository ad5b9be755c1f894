"""FedCP against its reference, what is scored, and the heads that it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.federation.batching import step_key
from fedjax_pfl.testing.toys import assert_close, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import maker
from tests.references import fedcp
from tests.references.network import cross_entropy

WEIGHT, DECAY = 200.0, 0.1


algorithm = maker("fedcp")


def noises_of(case, batches, purpose="train"):
    """The policy's noise in each step, as the library draws it: [t][i][k] [n, 2, 5]."""

    def of_step(key, i, k, count):
        rng = jax.random.fold_in(step_key(key, i, k), 7)
        size = case.federation.schedule.batch_size
        return np.asarray(jax.random.gumbel(rng, (size, 2, 5), jnp.float64))[:count]

    drawn = []
    for t, of_round in enumerate(batches):
        key = keys.of_round(case.key, purpose, t)
        ids = [int(i) for i in case.federation.data.ids]
        drawn.append(
            [
                [of_step(key, ids[i], k, len(batch)) for k, batch in enumerate(own)]
                for i, own in enumerate(of_round)
            ]
        )
    return drawn


def first_model_and_noises(one):
    """The policy's first parameters are the library's own, and those of the network as usual."""
    first = shared(one.states[0])
    assert_close({k: first[k] for k in ("head", "hidden")}, one.case.initial(), "the network's", 0)
    noises = noises_of(one.case, one.setting.batches)
    return {"initial": first, "noises": noises, "weight": WEIGHT, "decay": decay_of(one)}


def decay_of(one):
    return DECAY if one.variant == "decay" else 0.0


def shared(state):
    """The server's part of the model, of which `None` stands for what is personal."""
    params = {k: v for k, v in state.server["params"].items() if k not in fedcp.PRIVATE}
    return jax.tree.map(np.asarray, params)


def check_costs(now):
    # A frozen network is passed once with each minibatch of 4.
    frozen = 4 * now.clients["local_steps"]
    np.testing.assert_array_equal(now.clients["forward_samples"], frozen)
    now.assert_mean()


def check_new_clients(one):
    """They train a personal head for a round, from the global one, which stays."""
    if one.variant != "decay":
        return
    case, made = one.case, one.personalized()["params"]
    server = shared(one.states[-1])
    start = {**server, "personal_head": server["head"]}
    start["context"] = {"v": fedcp.unit(server["head"])}
    batches, given = one.newcomers()
    (*_, noises) = noises_of(case, [batches] * case.rounds, "personalize")
    for i, own in enumerate(batches):
        wanted = fedcp.train(start, own, noises[i], *given, WEIGHT, DECAY)
        wanted = {**wanted, "context": fedcp.unit(wanted["personal_head"])}
        ours = jax.tree.map(lambda leaf, i=i: leaf[i], made)
        for name, layer in wanted.items():
            assert_close(ours[name], layer, f"{name} of new client {i}")


test_reference, test_contract = comparison(
    "fedcp",
    fedcp.run,
    settings={"weight": WEIGHT},
    variants={"base": {}, "decay": Variant(options={"weight_decay": DECAY})},
    given=first_model_and_noises,
    states={
        "server": "global",
        "private.params.personal_head": "personalized.personal_head",
        "private.params.context": "personalized.context.v",
    },
    scores={"personalized": "personalized"},
    loss=lambda model, x, y: cross_entropy(fedcp.logits(model, x), y)[0],
    check=check_costs,
    finish=check_new_clients,
)


@pytest.mark.costly
def test_initial_policy():
    federation = algorithm().prepare(toy_federation())
    policy = federation.initial_model(jax.random.key(0))["params"]["policy"]
    np.testing.assert_array_equal(policy["scale"], 1)
    np.testing.assert_array_equal(policy["offset"], 0)
