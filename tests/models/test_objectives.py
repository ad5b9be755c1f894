"""Losses are the same in the form of every platform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.kernels import forms
from fedjax_pfl.models.objectives import OBJECTIVES


@pytest.mark.parametrize(("name", "lead"), [("classification", (6,)), ("next_token", (3, 4))])
def test_a_tpu_picks_the_label_without_a_gather(name, lead):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(*lead, 5)).astype(np.float32)
    labels = rng.integers(0, 5, size=lead, dtype=np.int32)
    if name == "next_token":
        labels[0, 1:] = -1

    def loss(logits):
        return jnp.sum(OBJECTIVES[name].losses(logits, jnp.asarray(labels)) ** 2)

    found, texts = {}, {}
    for platform in ("cpu", "tpu"):
        with forms.for_platform(platform):
            graded = jax.jit(jax.value_and_grad(lambda logits: loss(logits)))
            texts[platform] = str(jax.make_jaxpr(graded)(logits))
            found[platform] = graded(logits)
    assert "gather" in texts["cpu"]
    assert "gather" not in texts["tpu"]
    assert "scatter" not in texts["tpu"]
    for one, other in zip(found["cpu"], found["tpu"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "lower"), [("regression", ("mse", "mae")), ("next_token", ("perplexity",))]
)
def test_outputs_that_are_no_numbers_have_an_infinite_error(name, lower):
    """They were scored: NaN would mean that they were not."""
    objective = OBJECTIVES[name]
    if name == "regression":
        given = np.array([[np.nan, 1], [0, 1]], np.float32), np.ones((2, 2), np.float32)
    else:
        given = np.full((2, 3, 4), np.nan, np.float32), np.zeros((2, 3), np.int32)
    statistics = jax.jit(objective.sample_statistics)(*given)
    values = objective.values(np.sum(statistics, axis=0), 2)
    assert all(values[one] == np.inf for one in lower)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["classification", "multi_label", "regression", "next_token"])
def test_a_mixture_has_the_mean_of_its_models_predictions(name):
    rng, weights = np.random.default_rng(1), np.array([0.2, 0.8, 0.0])
    outputs = rng.normal(size=(3, 4, 5, 6) if name == "next_token" else (3, 4, 5))
    predicted = {
        "regression": lambda z: z,
        "multi_label": jax.nn.sigmoid,
    }.get(name, jax.nn.softmax)
    mixed = OBJECTIVES[name].mixed(jnp.asarray(outputs), jnp.asarray(weights))
    mean = sum(weight * predicted(one) for weight, one in zip(weights, outputs, strict=True))
    np.testing.assert_allclose(predicted(mixed), mean, 1e-6)


@pytest.fixture
def own_objectives():
    known = dict(OBJECTIVES)
    yield
    OBJECTIVES.clear()
    OBJECTIVES.update(known)


def distance(name="distance"):
    """The class of an objective: the distance between the predicted and the true class."""

    class Distance(pfl.models.Objective):
        classes = True
        num_statistics = 1
        measures = (pfl.models.Measure("class_distance", "lower", fraction=False, pools=True),)

        def losses(self, outputs, labels):
            apart = jnp.abs(jnp.arange(outputs.shape[1]) - labels[:, None])
            log_p = jax.nn.log_softmax(outputs)
            return jnp.sum(jnp.exp(log_p) * apart - log_p * (apart == 0), axis=1)

        def sample_statistics(self, outputs, labels):
            apart = jnp.abs(jnp.argmax(outputs, axis=1) - labels)
            return apart[:, None].astype(outputs.dtype)

        def values(self, sums, count):
            return {"class_distance": sums[..., 0] / count}

    Distance.name = name
    return Distance


def digits():
    data = pfl.load_dataset("digits")
    return data, pfl.make_partition("iid", data, 3, 0, train_samples=20, test_samples=10)


@pytest.mark.costly
def test_an_objective_of_ones_own_trains_and_scores(own_objectives):
    pfl.models.register_objective(distance())
    data, parts = digits()
    federation = pfl.federate(data, parts, "softmax", objective="distance", learning_rate=0.1)
    result = pfl.simulate(pfl.make_algorithm("local"), federation, 8)
    assert result.measures[0].name == "class_distance"
    scores = result.scores["personalized/test/class_distance"][0, 0]
    assert (scores >= 0).all() and scores[-1].mean() < scores[0].mean() - 0.5
    plain = pfl.simulate(pfl.make_algorithm("local"), pfl.federate(data, parts, "softmax"), 1)
    assert plain.measures[0].name == "accuracy"


def test_an_objective_that_does_not_fit_the_labels(own_objectives):
    data, parts = digits()
    with pytest.raises(pfl.InputError, match=r"Unknown objective 'regresion'\. Did you mean"):
        pfl.federate(data, parts, "softmax", objective="regresion")
    with pytest.raises(pfl.InputError, match=r"'next_token' can't take labels of 'digits': "):
        pfl.federate(data, parts, "softmax", objective="next_token")

    two = pfl.dataset_from_arrays("two", np.zeros((8, 3), np.float32), np.arange(8) % 2)
    with pytest.raises(pfl.InputError, match=r"'regression' can't take labels of 'two': "):
        pfl.federate(two, pfl.make_partition("iid", two, 2, 0), "softmax", objective="regression")

    class Summed(distance("summed")):
        def losses(self, outputs, labels):
            return jnp.sum(outputs)

    pfl.models.register_objective(Summed)
    with pytest.raises(pfl.InputError, match=r"'summed' must have losses \[11\] .* got \[\] and"):
        pfl.federate(data, parts, "softmax", objective="summed")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (object, "objective must be a subclass of Objective"),
        (
            type("Half", (pfl.models.Objective,), {"name": "half"}),
            "objective Half must define losses",
        ),
        (type("Bare", (distance("bare"),), {"measures": ()}), "measures of Bare must be a tuple"),
        (distance("regression"), "The objective 'regression' is registered already"),
    ],
)
def test_objectives_that_can_not_be_registered(kind, message, own_objectives):
    with pytest.raises(pfl.InputError, match=message):
        pfl.models.register_objective(kind)
