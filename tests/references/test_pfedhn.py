"""pFedHN's reference: the hypernetwork and its gradient, the server's step, both forms."""

import numpy as np
import pytest

from tests.references import fedavg, network, pfedhn
from tests.references.local_sgd import sgd
from tests.references.small import (
    CLASSES,
    COUNT,
    PARTIAL,
    RATES,
    assert_same,
)

PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "clip": None}
UNDECAYED = {"server_momentum": 0.0, "server_decay": 0.0, "server_clip": None}


def hypernetwork(like, noise=0.0):
    rng = np.random.default_rng(7)
    embeddings, psi = pfedhn.random_hypernetwork(
        rng, like, clients=COUNT, embedding=2, hidden=5, depth=2
    )
    for layer in pfedhn.layers_in_order(psi):
        layer["bias"] = layer["bias"] + noise * rng.normal(size=layer["bias"].shape)
    return {"embeddings": embeddings, "hypernetwork": psi}


def biases_alone(like):
    """A hypernetwork whose models are the biases of its output layers, and which stays so."""
    embeddings, psi = hypernetwork(like).values()
    nothing = pfedhn.rebuilt(0.0 * pfedhn.numbers(embeddings, psi), embeddings, psi)
    for name, leaves in nothing[1]["output"].items():
        for leaf, layer in leaves.items():
            layer["bias"] = np.ravel(like[name][leaf])
    return {"embeddings": nothing[0], "hypernetwork": nothing[1]}


def all_numbers(models):
    return pfedhn.numbers(models["embeddings"], models["hypernetwork"])


@pytest.fixture
def federation(setting):
    return {**setting, **hypernetwork(setting["initial"])}


# ------------------------------------------------------------------ the hypernetwork


def test_a_step_descends_on_a_quadratic_and_the_other_sign_ascends(setting):
    """Two published codes of a similar method step the wrong way."""
    like, rng = setting["initial"], np.random.default_rng(4)
    drawn = hypernetwork(like, 0.3)
    for i in range(COUNT):
        target = network.random_parameters(rng, 5, 6, CLASSES)

        def loss(vector, i=i, target=target):
            vectors, psi = pfedhn.rebuilt(vector, *drawn.values())
            return 0.5 * network.squared_distance(pfedhn.generate(vectors[i], psi, like), target)

        model = pfedhn.generate(drawn["embeddings"][i], drawn["hypernetwork"], like)
        change = network.scale(0.1, network.subtract(model, target))  # theta - theta'
        slope = pfedhn.server_gradient(*drawn.values(), i, change)
        start = all_numbers(drawn)
        assert loss(start - 1e-2 * slope) < loss(start) < loss(start + 1e-2 * slope)


# ------------------------------------------------------------------ limits


def test_biases_alone_pass_a_model_from_client_to_client(setting):
    """At rate 1, theta - (theta - theta') is what the client before it trained."""
    common = {**setting, **biases_alone(setting["initial"]), "cohorts": PARTIAL}
    model = setting["initial"]
    for t, models in enumerate(pfedhn.run(**common, **PLAIN, **UNDECAYED, server_rate=1.0)):
        for i in PARTIAL[t]:
            assert_same(models["received"][i], model)
            model = sgd(model, setting["batches"][t][i], setting["x"], setting["y"], RATES[t])
            assert_same(models["trained"][i], model)
        for own in models["personalized"]:
            assert_same(own, model)


def test_biases_alone_and_mean_products_are_fedavg_of_equal_clients(setting):
    common = {**setting, **biases_alone(setting["initial"]), "cohorts": PARTIAL}
    ran = pfedhn.run(**common, **PLAIN, **UNDECAYED, server_rate=1.0, form="mean_vjp")
    plain = fedavg.run(**{**setting, "cohorts": PARTIAL, "sizes": [1] * COUNT})
    for models, expected in zip(ran, plain, strict=True):
        assert_same(models["personalized"][3], expected["global"])


def test_a_cohort_is_its_clients_one_after_the_other(federation):
    """So the paper's step is a round with one client, and the order counts."""
    batches, rates = federation["batches"][0], [RATES[0]] * 3
    common = {**federation, "learning_rate": rates, "batches": [batches] * 3}
    singly = pfedhn.run(**{**common, "cohorts": [[3], [0], [1]]})[-1]
    (together,) = pfedhn.run(**{**common, "rounds": 1, "cohorts": [[3, 0, 1]]})
    np.testing.assert_array_equal(all_numbers(together), all_numbers(singly))
    np.testing.assert_array_equal(together["velocity"], singly["velocity"])
    (sorted_,) = pfedhn.run(**{**common, "rounds": 1, "cohorts": [[0, 1, 3]]})
    assert np.abs(all_numbers(sorted_) - all_numbers(together)).max() > 1e-9
