"""The forms of the layers for each platform: equal numbers, chosen by a value that is handed in."""

from functools import partial
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.costs import step_flops
from fedjax_pfl.models import layers
from fedjax_pfl.models.kernels import forms
from fedjax_pfl.models.normalization import BatchNorm
from fedjax_pfl.models.task import LinenTask, Outputs


class Net(nn.Module):
    """All layers that have forms."""

    @nn.compact
    def __call__(self, x, train: bool = False, valid=None):
        x = layers.Conv(16, (3, 3), 1)(x, layers.max_pool)
        pool = partial(layers.max_pool, size=3, stride=2, padding=1)
        x = BatchNorm()(layers.Conv(16, (3, 3), stride=2)(x), train, valid, pool)
        return layers.Dense(3)(layers.global_mean(nn.relu(x)))


class Own(nn.Module):
    """A user's network, of flax's layers."""

    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.Conv(4, (3, 3))(x), (2, 2), (2, 2))
        return nn.Dense(3)(x.reshape(len(x), -1))


class OwnTask(pfl.Task):
    """A user's task, whose fields are none of a dataclass."""

    def __init__(self, scale):
        object.__setattr__(self, "scale", scale)

    def init(self, key, inputs):
        return {"params": {"head": {"kernel": jnp.zeros((inputs[0].size, 3))}}}

    def apply(self, model, inputs, *mode):
        flat = self.scale * inputs.reshape(len(inputs), -1)
        return Outputs(flat @ model["params"]["head"]["kernel"], {})


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


def images(model="cnn", **options) -> pfl.Federation:
    """Four clients with a few images of 8x8, and a CNN."""
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    dataset = pfl.dataset_from_arrays("noise", samples, np.arange(40) % 3, num_classes=3)
    parts = np.arange(40).reshape(4, 10)
    partition = pfl.Partition.from_lists(parts[:, :6], parts[:, 6:])
    options = {"dtype": "float32", "batch_size": 3, "learning_rate": 0.3} | options
    return pfl.federate(dataset, partition, model, **options)


def operations(fn, *args):
    """Names of the primitives that a function is traced to."""
    return str(jax.make_jaxpr(fn)(*args))


@pytest.mark.costly
def test_values_gradients_and_hessian_vector_products_are_equal():
    """Per-FedAvg needs products with the Hessian on every platform."""
    with jax.enable_x64(True):
        tasks = [LinenTask(Net(), dtype="float64", platform=name) for name in ("cpu", "tpu")]
        (x,) = drawn((3, 4, 13, 14, 2))  # of three clients
        clients = jax.vmap(lambda key: tasks[0].initial_model(key, x[0]))
        models = jax.jit(clients)(jax.random.split(jax.random.key(0), 3))
        valid = np.array([True, True, True, False])

        def numbers(task):
            def loss(params, model, x):
                out = task.outputs({**model, "params": params}, x, True, None, valid)
                return jnp.sum(jnp.tanh(out.logits)), out.statistics

            def one(model, x):
                params = model["params"]
                slope = jax.grad(lambda p: loss(p, model, x)[0])
                product = jax.jvp(slope, (params,), (jax.tree.map(jnp.cos, params),))
                return loss(params, model, x), product, task.predict(model, x)

            return jax.vmap(one)

        ours, theirs = jax.jit(lambda *given: [numbers(task)(*given) for task in tasks])(models, x)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.abs(a).max() > 1e-6
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.costly
def test_the_task_decides_and_jit_knows_it():
    x = jnp.ones((2, 13, 14, 2))
    model = LinenTask(Net()).initial_model(jax.random.key(0), x)
    apply = jax.jit(lambda task, model: task.predict(model, x), static_argnums=0)
    result = {}
    for name in (None, "tpu", "cpu", "gpu", "tpu"):
        result[name] = operations(partial(apply, LinenTask(Net(), platform=name)), model)
    assert ("conv_general_dilated" in result["tpu"]) and ("reduce_window" in result["gpu"])
    assert "pad[" not in result["tpu"] and "pad[" in result["cpu"]  # a copy of its own
    for name in (None, "cpu"):
        assert "conv_general_dilated" not in result[name] and "reduce_window" not in result[name]
    # A layer's jitted function that both call is traced for each.
    pool = jax.jit(layers.max_pool)
    for name, there in (("cpu", False), ("tpu", True), ("cpu", False)):
        with forms.for_platform(name):
            assert ("reduce_window" in operations(pool, x)) == there


@pytest.mark.costly
def test_a_task_around_another_decides_for_it():
    federation = images(platform="tpu")
    x = jnp.ones((2, 8, 8, 1))
    for changed in (federation.with_personal_head(), federation.with_mixtures()):
        model = changed.initial_model(jax.random.key(0))
        assert "conv_general_dilated" in operations(changed.task.predict, model, x)


@pytest.mark.costly
def test_a_users_own_network_is_as_it_was_on_accelerators():
    x = jnp.ones((2, 8, 8, 2))
    tasks = [LinenTask(Own(), platform="cpu", convolutions="xla"), LinenTask(Own(), platform="tpu")]
    model = tasks[0].initial_model(jax.random.key(0), x)
    one, other = (operations(task.predict, model, x) for task in tasks)
    assert one == other


def test_a_users_own_task_is_told_the_platform():
    own = OwnTask(2.0)
    task = images(own, platform="tpu").task
    assert (task.platform, task.scale, own.platform) == ("tpu", 2.0, None)


@pytest.mark.costly
def test_flops_are_the_same_on_every_platform():
    counts = [step_flops(images(platform=name)) for name in ("cpu", "tpu")]
    assert counts[0] == counts[1] > 0


@pytest.mark.costly
def test_nothing_asks_the_process_while_tracing():
    federation = images(platform="tpu")
    assert federation.execution.platform == federation.task.platform == "tpu"
    assert str(federation.execution) == "vmap"
    with mock.patch("jax.default_backend", side_effect=AssertionError("asked")):
        program = checked_program(pfl.make_algorithm("fedavg"), federation, 2)
        program.lowered(jax.local_devices()[:1])
    with mock.patch("jax.default_backend", return_value="tpu"):
        assert images().task.platform == "tpu"
    with mock.patch("jax.default_backend", return_value="metal"):
        assert images().task.platform == "gpu"


def test_unknown_platforms_are_refused():
    with pytest.raises(pfl.InputError, match=r"Unknown platform 'tpus'\. Did you mean 'tpu'"):
        images(platform="tpus")
