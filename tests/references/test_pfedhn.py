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
    ROUNDS,
    assert_same,
    defaults,
    differences,
    flat,
)

PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "clip": None}
UNDECAYED = {"server_momentum": 0.0, "server_decay": 0.0, "server_clip": None}


def body_of(model):
    return {layer: leaves for layer, leaves in model.items() if layer != "head"}


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


def test_models_by_hand(setting):
    like, drawn = setting["initial"], hypernetwork(setting["initial"], 0.5)
    first, second, third = drawn["hypernetwork"]["trunk"]
    inner = network.linear(first, drawn["embeddings"][1])
    for layer in (second, third):
        inner = network.linear(layer, np.maximum(inner, 0.0))
    assert (inner < 0).any()  # no ReLU behind the last layer
    model = pfedhn.generate(drawn["embeddings"][1], drawn["hypernetwork"], like)
    for name in like:
        for leaf in like[name]:
            made = network.linear(drawn["hypernetwork"]["output"][name][leaf], inner)
            np.testing.assert_array_equal(model[name][leaf], made.reshape(like[name][leaf].shape))


def test_vjp_equals_central_differences(setting):
    like, rng = setting["initial"], np.random.default_rng(1)
    drawn = hypernetwork(like, 0.5)
    embeddings, psi = drawn["embeddings"], drawn["hypernetwork"]
    change = network.random_parameters(rng, 5, 6, CLASSES)
    dead = 0
    for i in range(COUNT):

        def projected(vector, i=i):
            vectors, moved = pfedhn.rebuilt(vector, embeddings, psi)
            return network.dot(pfedhn.generate(vectors[i], moved, like), change)

        numeric = differences(projected, pfedhn.numbers(embeddings, psi), 1e-6)
        result = pfedhn.server_gradient(embeddings, psi, i, change)
        np.testing.assert_allclose(result, numeric, rtol=1e-5, atol=1e-8)
        others = np.arange(COUNT) != i
        assert not result[: embeddings.size].reshape(embeddings.shape)[others].any()
        dead += np.sum(pfedhn.inputs_of(embeddings[i], psi)[1] < 0)
    assert dead > 0


def test_numbers_are_rebuilt(setting):
    drawn = hypernetwork(setting["initial"], 0.5)
    vector = all_numbers(drawn)
    again = pfedhn.rebuilt(vector, *drawn.values())
    np.testing.assert_array_equal(pfedhn.numbers(*again), vector)
    np.testing.assert_array_equal(again[0], drawn["embeddings"])


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


@pytest.mark.parametrize("form", pfedhn.FORMS)
def test_without_a_rate_the_models_stay(federation, form):
    for models in pfedhn.run(**federation, form=form, server_rate=0.0):
        for i, model in enumerate(models["personalized"]):
            first = pfedhn.generate(
                federation["embeddings"][i], federation["hypernetwork"], federation["initial"]
            )
            np.testing.assert_array_equal(flat(model), flat(first))
            assert models["received"][i] is not models["trained"][i]


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


def test_the_forms_agree_for_one_client_and_differ_for_more(federation):
    alone = {**federation, "cohorts": [[2], [0], [2]]}
    ran = [pfedhn.run(**alone, form=form) for form in pfedhn.FORMS]
    for one, other in zip(*ran, strict=True):
        np.testing.assert_array_equal(all_numbers(one), all_numbers(other))
    ran = [pfedhn.run(**{**federation, "rounds": 1}, form=form)[0] for form in pfedhn.FORMS]
    assert np.abs(all_numbers(ran[0]) - all_numbers(ran[1])).max() > 1e-6
    with pytest.raises(ValueError, match="Unknown form 'mean'"):
        pfedhn.run(**federation, form="mean")


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


# ------------------------------------------------------------------ the steps


def test_inner_steps_by_hand(setting):
    """Gradients are clipped first; then decay enters, then momentum, which begins at 0."""
    like, x, y = setting["initial"], setting["x"], setting["y"]
    batches = setting["batches"][0][0][:3]
    theta, velocity, clips = flat(like), 0.0, 0
    for batch in batches:
        g = flat(network.loss_and_gradient(network.unflat(theta, like), x[batch], y[batch])[1])
        norm = np.sqrt(g @ g)
        g = g * min(1.0, 0.9 / norm)
        clips += norm > 0.9
        velocity = 0.9 * velocity + g + 0.05 * theta
        theta = theta - 0.3 * velocity
    assert 0 < clips < 3
    options = {"momentum": 0.9, "weight_decay": 0.05, "bound": 0.9}
    model, head, _ = pfedhn.train_client(like, batches, x, y, 0.3, **options)
    np.testing.assert_allclose(flat(model), theta, rtol=1e-13)
    assert head is None


@pytest.mark.parametrize("bound", [None, 1e-3])
def test_server_steps_by_hand(federation, bound):
    """Momentum and decay move all embeddings, also those of clients that are not there."""
    common = {**federation, "rounds": 2, "cohorts": [[1], [3]]}
    options = {"server_rate": 0.1, "server_decay": 0.02, "embedding_rate": 0.3}
    ran = pfedhn.run(**common, **options, server_clip=bound)
    vector, velocity = all_numbers(federation), 0.0
    rates = np.where(np.arange(len(vector)) < federation["embeddings"].size, 0.3, 0.1)
    for t, (i, models) in enumerate(zip((1, 3), ran, strict=True)):
        embeddings, psi = pfedhn.rebuilt(
            vector, federation["embeddings"], federation["hypernetwork"]
        )
        received = pfedhn.generate(embeddings[i], psi, federation["initial"])
        np.testing.assert_allclose(flat(models["received"][i]), flat(received), rtol=1e-12)
        trained, *_ = pfedhn.train_client(
            received,
            federation["batches"][t][i],
            federation["x"],
            federation["y"],
            RATES[t],
            momentum=0.9,
            weight_decay=5e-5,
            bound=50.0,
        )
        change = network.subtract(received, trained)
        slope = pfedhn.server_gradient(embeddings, psi, i, change)
        norm = np.sqrt(slope @ slope)
        assert bound is None or norm > bound
        slope = slope if bound is None else slope * bound / norm
        velocity = 0.9 * velocity + slope + 0.02 * vector
        vector = vector - rates * velocity
        np.testing.assert_allclose(all_numbers(models), vector, rtol=1e-11, atol=1e-14)
    first, second = (models["embeddings"] for models in ran)
    assert (first != federation["embeddings"]).all() and (second != first).all()


def test_nobody_leaves_the_server_as_it_is_and_no_step_only_decays_it(federation):
    for form in pfedhn.FORMS:
        (nobody,) = pfedhn.run(**{**federation, "rounds": 1, "cohorts": [[]]}, form=form)
        np.testing.assert_array_equal(all_numbers(nobody), all_numbers(federation))
        idle = {**federation, "rounds": 1, "cohorts": [[2]], "batches": [[[]] * COUNT]}
        (after,) = pfedhn.run(**idle, form=form)
        expected = all_numbers(federation) * (1 - 1e-2 * 1e-3)
        np.testing.assert_allclose(all_numbers(after), expected, rtol=1e-13)


# ------------------------------------------------------------------ local heads


@pytest.fixture
def with_heads(setting):
    rng = np.random.default_rng(9)
    heads = [network.random_parameters(rng, 5, 6, CLASSES)["head"] for _ in range(COUNT)]
    return {**setting, **hypernetwork(body_of(setting["initial"])), "heads": heads}


def test_local_heads_stay_with_their_clients(with_heads):
    heads = with_heads["heads"]
    for cohort, models in zip(
        PARTIAL, pfedhn.run(**{**with_heads, "cohorts": PARTIAL}), strict=True
    ):
        own = [model["head"] for model in models["personalized"]]
        assert "head" not in models["hypernetwork"]["output"]
        for i in range(COUNT):
            assert (own[i] is heads[i]) == (i not in cohort)
            if i in cohort:
                assert models["trained"][i]["head"] is own[i]
        heads = own


def test_local_heads_by_hand(with_heads):
    """They step with the body, from the same gradient; their momentum outlasts the round."""
    x, y = with_heads["x"], with_heads["y"]
    common = {**with_heads, "cohorts": [[2]] * ROUNDS, "clip": 0.2}
    body, velocity = None, 0.0
    head = flat({"head": with_heads["heads"][2]})
    for t, models in enumerate(pfedhn.run(**common)):
        body, of_body = flat(body_of(models["received"][2])), 0.0
        for batch in with_heads["batches"][t][2]:
            model = {
                **network.unflat(body, body_of(with_heads["initial"])),
                **network.unflat(head, {"head": with_heads["heads"][2]}),
            }
            gradient = network.loss_and_gradient(model, x[batch], y[batch])[1]
            slope = flat(body_of(gradient))
            slope = slope * min(1.0, 0.2 / np.sqrt(slope @ slope))
            of_body = 0.9 * of_body + slope + 5e-5 * body
            velocity = 0.9 * velocity + flat({"head": gradient["head"]}) + 5e-5 * head
            body, head = body - RATES[t] * of_body, head - RATES[t] * velocity
        trained = models["trained"][2]
        np.testing.assert_allclose(flat(body_of(trained)), body, rtol=1e-11)
        np.testing.assert_allclose(flat({"head": trained["head"]}), head, rtol=1e-11)


def test_defaults_are_those_of_the_specification():
    assert defaults(pfedhn.run) == {
        "server_rate": 1e-2,
        "embedding_rate": None,
        "server_momentum": 0.9,
        "server_decay": 1e-3,
        "server_clip": 50.0,
        "momentum": 0.9,
        "weight_decay": 5e-5,
        "clip": 50.0,
        "form": "sequential",
        "heads": None,
        "sizes": None,
    }
