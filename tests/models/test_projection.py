"""Networks whose features are projected before their head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.models.networks import make_model
from fedjax_pfl.models.task import EVALUATION, as_task
from fedjax_pfl.testing.toys import toy_federation


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("mlp", (8,), {"hidden": 6}),
        ("mtfl_cnn", (10, 10, 1), {"dropout": 0.5}),
        ("textcnn", (6,), {"vocab_size": 9, "hidden": 6}),
    ],
)
def test_the_head_classifies_two_layers_of_the_features(name, shape, options):
    """In evaluation: dropout is off there, as in the network without a projection."""
    texts = "vocab_size" in options
    inputs = jnp.arange(3 * np.prod(shape)).reshape(3, *shape) % 7
    inputs = inputs if texts else inputs / 7.0
    plain = as_task(make_model(name, shape, 5, **options), "float32")
    task = as_task(make_model(name, shape, 5, projection=4, **options), "float32")
    model = jax.jit(task.init)(jax.random.key(0), inputs)
    params = dict(model["params"])
    own = dict(plain.init(jax.random.key(0), inputs)["params"])
    assert params["head"]["kernel"].shape == (4, 5)
    projection = params.pop("projection")
    assert params.keys() == own.keys()

    def linear(layer, x):
        return x @ layer["kernel"] + layer["bias"]

    h = plain.features({**model, "params": {**params, "head": own["head"]}}, inputs)
    assert projection["first"]["kernel"].shape == (h.shape[1], h.shape[1])
    z = linear(projection["second"], jnp.maximum(linear(projection["first"], h), 0))
    np.testing.assert_allclose(task.features(model, inputs), z, 1e-5, 1e-6)
    logits = linear(params["head"], z)
    np.testing.assert_allclose(task.predict(model, inputs), logits, 1e-5, 1e-6)
    apart = task.classify(model, task.embed(model, inputs, *EVALUATION)[0])
    np.testing.assert_allclose(apart, logits, 1e-5, 1e-6)


@pytest.mark.costly
def test_modes_reach_the_network():
    """Dropout and moments of the minibatch in training."""
    task = as_task(make_model("mtfl_cnn", (10, 10, 1), 3, projection=4), "float32")
    inputs = jax.random.normal(jax.random.key(1), (4, 10, 10, 1))
    model = task.init(jax.random.key(0), inputs)
    valid = jnp.array([True, True, True, False])
    first, second, scored = (
        task.outputs(model, inputs, *mode)
        for mode in ((True, jax.random.key(2), valid), (True, jax.random.key(3), valid), EVALUATION)
    )
    assert abs(first.features - second.features).max() > 1e-3
    assert first.features.shape == (4, 4) and not scored.statistics
    padded = task.outputs(model, inputs.at[3].set(9.0), True, jax.random.key(2), valid)
    moments = first.statistics["batch_stats"], padded.statistics["batch_stats"]
    for one, other in zip(*map(jax.tree.leaves, moments), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def test_it_is_an_option_of_every_network_given_by_name():
    options = {"projection": 4, "hidden": 6}
    federation = toy_federation(model="mlp", model_options=options, dtype="float32")
    assert federation.num_features == 4
    blocks = ("fc_0", "projection/first", "projection/second", "head")
    assert federation.plan.blocks == blocks and federation.plan.head == "head"


@pytest.mark.costly
@pytest.mark.parametrize("initializer", ["torch", "flax"])
def test_it_begins_as_the_network_does(initializer):
    """Flax's biases are zeros."""
    network = make_model("mlp", (8,), 5, initializer, projection=4)
    params = network.init(jax.random.key(0), jnp.ones((1, 8)))["params"]
    for layer in (params["projection"]["first"], params["projection"]["second"], params["head"]):
        assert layer["bias"].any() == (initializer == "torch")
