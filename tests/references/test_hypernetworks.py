"""References in which hypernetworks make models or weights: pFedHN, pFedLA."""

import numpy as np
import pytest

from tests.references import network, pfedhn, pfedla
from tests.references.local_sgd import sgd
from tests.references.small import CLASSES, COUNT, PARTIAL, RATES, assert_same

# ---- pFedHN


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


def test_a_step_descends_on_a_quadratic_and_the_other_sign_ascends(setting):
    """Two published codes of a similar method step the wrong way."""
    like, rng = setting.initial, np.random.default_rng(4)
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


def test_biases_alone_pass_a_model_from_client_to_client(setting):
    """At rate 1, theta - (theta - theta') is what the client before it trained."""
    common, drawn = setting.but(cohorts=PARTIAL), biases_alone(setting.initial)
    model = setting.initial
    for t, models in enumerate(pfedhn.run(common, **drawn, **PLAIN, **UNDECAYED, server_rate=1.0)):
        for i in PARTIAL[t]:
            assert_same(models["received"][i], model)
            model = sgd(model, setting.batches[t][i], setting.x, setting.y, RATES[t])
            assert_same(models["trained"][i], model)
        for own in models["personalized"]:
            assert_same(own, model)


def test_a_cohort_is_its_clients_one_after_the_other(setting):
    """So the paper's step is a round with one client, and the order counts."""
    batches, drawn = setting.batches[0], hypernetwork(setting.initial)
    common = setting.but(learning_rate=[RATES[0]] * 3, batches=[batches] * 3)
    singly = pfedhn.run(common.but(cohorts=[[3], [0], [1]]), **drawn)[-1]
    (together,) = pfedhn.run(common.but(rounds=1, cohorts=[[3, 0, 1]]), **drawn)
    np.testing.assert_array_equal(all_numbers(together), all_numbers(singly))
    np.testing.assert_array_equal(together["velocity"], singly["velocity"])
    (sorted_,) = pfedhn.run(common.but(rounds=1, cohorts=[[0, 1, 3]]), **drawn)
    assert np.abs(all_numbers(sorted_) - all_numbers(together)).max() > 1e-9


# ---- pFedLA


BLOCKS = ("hidden", "head")


def hypernetworks(blocks=2, weighting="softmax", clients=COUNT, noise=0.0):
    """One small hypernetwork per client; `noise` moves the output layers off their start."""
    rng = np.random.default_rng(5)
    drawn = [
        pfedla.random_hypernetwork(
            rng, embedding=4, hidden=6, blocks=blocks, clients=clients, weighting=weighting
        )
        for _ in range(clients)
    ]
    for _, psi in drawn:
        for layer in psi["output"]:
            layer["kernel"] = layer["kernel"] + noise * rng.normal(size=layer["kernel"].shape)
            layer["bias"] = layer["bias"] + noise * rng.normal(size=layer["bias"].shape)
    return {"embeddings": [v for v, _ in drawn], "hypernetworks": [psi for _, psi in drawn]}


@pytest.mark.parametrize("weighting", pfedla.WEIGHTINGS)
def test_pfedla_weights_lie_on_the_simplex(weighting):
    start, moved = (hypernetworks(weighting=weighting, noise=noise) for noise in (0.0, 0.5))
    for drawn in (start, moved):
        for vector, psi in zip(drawn["embeddings"], drawn["hypernetworks"], strict=True):
            alpha = pfedla.hypernetwork(vector, psi, weighting)
            assert alpha.shape == (2, COUNT) and alpha.min() >= 0.0
            np.testing.assert_allclose(alpha.sum(axis=1), 1.0, rtol=1e-14)
            if drawn is start and weighting == "softmax":
                np.testing.assert_array_equal(alpha, 1 / COUNT)
    np.testing.assert_array_equal(pfedla.normalized(-np.ones(4), "relu_norm"), 0.25)
    np.testing.assert_array_equal(pfedla.normalized_vjp(-np.ones(4), np.ones(4), "relu_norm"), 0.0)


@pytest.mark.parametrize("weighting", pfedla.WEIGHTINGS)
def test_pfedla_hypernetwork_steps_descend_on_a_quadratic(weighting):
    rng = np.random.default_rng(4)
    drawn = hypernetworks(weighting=weighting, noise=0.1)
    models = [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(COUNT)]
    targets = [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(COUNT)]

    def loss(i, vector, psi):
        mixed = pfedla.aggregate(pfedla.hypernetwork(vector, psi, weighting), models, BLOCKS)
        return 0.5 * network.squared_distance(mixed, targets[i]), mixed

    for i in range(COUNT):
        vector, psi = drawn["embeddings"][i], drawn["hypernetworks"][i]
        before, mixed = loss(i, vector, psi)
        change = network.scale(0.1, network.subtract(targets[i], mixed))  # -eta gradient
        cotangent = pfedla.weight_cotangent(change, models, BLOCKS)
        new_vector, new_psi = pfedla.step(vector, psi, cotangent, 1e-3, weighting)
        for moved in ((new_vector, new_psi), (new_vector, psi), (vector, new_psi)):
            assert loss(i, *moved)[0] < before
        backward = pfedla.step(vector, psi, cotangent, -1e-3, weighting)
        assert loss(i, *backward)[0] > before
