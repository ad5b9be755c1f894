"""Losses that see features and logits of the minibatch loss's own forward pass."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.normalization import BatchNorm
from fedjax_pfl.models.task import LinenTask, as_task
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.training.local_step import LocalStep
from fedjax_pfl.utils.structs import struct
from tests.algorithms.harness import TwoLayers, dense

SIZE = 4


pytestmark = pytest.mark.usefixtures("double_precision")


class Saying(nn.Module):
    """The references' network, which says its features."""

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(dense(5, "hidden")(x))
        self.sow("intermediates", "features", x)
        return dense(3, "head")(x)


class Dropping(nn.Module):
    """Dropout, batch-norm or both as a part of the features."""

    rate: float = 0.0
    norm: bool = False

    def setup(self):
        self.fc, self.head, self.drop = nn.Dense(5), nn.Dense(3), nn.Dropout(self.rate)
        self.bn = BatchNorm() if self.norm else lambda x, train, valid: x

    def features(self, x, train: bool = False, valid=None):
        return self.drop(self.bn(nn.tanh(self.fc(x)), train, valid), deterministic=not train)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))


def forward(model, task):
    inputs = jax.random.normal(jax.random.key(2), (SIZE, 4))
    batch = pfl.training.Batch(inputs, jnp.zeros(SIZE, jnp.int32), jnp.ones(SIZE, bool))
    return jax.jit(task.forward)(model, batch, jax.random.key(3)), batch


@pytest.mark.costly
@pytest.mark.parametrize(
    "net", [Dropping(0.5), Dropping(norm=True), Saying()], ids=["drop", "norm", "sown"]
)
def test_features_are_those_that_the_head_saw(net):
    """With the dropout and the batch statistics of the same pass."""
    task = LinenTask(net, dtype="float64")
    model = jax.jit(task.initial_model)(jax.random.key(0), jnp.zeros((1, 4)))
    (_, after, seen), batch = forward(model, task)
    head = model["params"]["head"]
    np.testing.assert_allclose(seen.features @ head["kernel"] + head["bias"], seen.logits, 1e-12)
    assert set(after) == set(model)
    calm = task.features(model, batch.inputs)
    np.testing.assert_allclose(
        calm @ head["kernel"] + head["bias"], task.predict(model, batch.inputs), 1e-12
    )
    if not isinstance(net, Saying):
        assert np.abs(calm - seen.features).max() > 1e-3
    half = LinenTask(net, dtype="float64", compute_dtype="float16")
    assert jax.eval_shape(half.features, model, batch.inputs).dtype == "float64"


def products(extra_loss):
    """Matrix products of one local step's loss and gradient."""
    federation = toy_federation(model=Saying())
    model = federation.initial_model(jax.random.key(0))
    step = LocalStep(federation, 0.1, extra_loss=extra_loss)
    batch = forward(model, federation.task)[1]
    traced = jax.make_jaxpr(lambda m: step.loss_and_gradient(m, batch, None, None, None))(model)
    return str(traced).count("dot_general")


@pytest.mark.costly
def test_there_is_no_second_forward_pass():
    plain = products(None)
    assert products(lambda p, batch, *_: jnp.sum(batch.features**2) + batch.logits.max()) == plain
    task = toy_federation(model=Saying()).task
    again = products(lambda p, b, *_: jnp.sum(task.features({"params": p}, b.inputs)))
    assert again > plain


@struct
class LongFeatures(pfl.training.ExtraLoss):
    def __call__(self, params, batch, client, plan):
        return 0.01 * jnp.sum(batch.features**2)


def test_networks_without_features_are_refused_where_they_are_asked_for():
    silent = toy_federation(model=TwoLayers())
    assert toy_federation().num_features == 5
    for ask in (
        lambda: silent.num_features,
        lambda: pfl.Simulation(pfl.make_algorithm("moon"), silent).check(),
        lambda: pfl.Simulation(
            pfl.make_algorithm("fedavg"),
            toy_federation(model=TwoLayers(), extra_loss=LongFeatures()),
        ).check(),
    ):
        with pytest.raises(pfl.InputError, match=r"does not define its features.*method"):
            ask()
    pfl.Simulation(pfl.make_algorithm("fedavg"), silent).check()
    pfl.Simulation(pfl.make_algorithm("fedavg"), toy_federation(extra_loss=LongFeatures())).check()


def test_features_in_the_outputs_of_a_user_s_task():
    class Own(pfl.models.FunctionTask):
        def apply(self, model, inputs, train, rng, valid):
            return pfl.models.Outputs(inputs @ model["params"], {}, features=inputs)

    pair = (lambda key, inputs: jnp.ones((4, 3)), lambda params, inputs: inputs @ params)
    model, inputs = {"params": jnp.ones((4, 3))}, jnp.ones((2, 4))
    np.testing.assert_array_equal(Own(*pair).features(model, inputs), inputs)
    with pytest.raises(pfl.InputError, match="the features of its Outputs"):
        as_task(pair).features(model, inputs)
