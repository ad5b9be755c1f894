"""Flax's convolutions inside a task: the numbers of Flax, without XLA's operation on a CPU."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as pfl
from fedjax_pfl.models.task import EVALUATION, LinenTask, as_task

SQUARE = (3, 3)
FAST = {
    "same": (nn.Conv(3, SQUARE), (2, 5, 6, 4)),
    "valid": (nn.Conv(3, SQUARE, padding="VALID", use_bias=False), (2, 5, 6, 4)),
    "minimal filtering": (nn.Conv(16, (5, 5)), (2, 8, 8, 16)),
    "strides": (nn.Conv(3, SQUARE, 2), (2, 5, 6, 4)),
    "even kernel": (nn.Conv(3, (2, 4)), (2, 5, 6, 4)),
    "sides": (nn.Conv(3, SQUARE, padding=((0, 2), (1, 0))), (2, 5, 6, 4)),
    "circular": (nn.Conv(3, SQUARE, padding="CIRCULAR"), (2, 5, 6, 4)),
    "mask": (nn.Conv(3, SQUARE, mask=np.eye(3)[..., None, None] * np.ones((4, 3))), (2, 5, 6, 4)),
    "time": (nn.Conv(3, (3,), 2), (2, 7, 4)),
    "causal": (nn.Conv(3, (3,), padding="CAUSAL"), (2, 7, 4)),
    "batch of two axes": (nn.Conv(3, SQUARE), (2, 2, 5, 6, 4)),
}
BY_XLA = {
    "groups": (nn.Conv(4, SQUARE, feature_group_count=2), (2, 5, 6, 4)),
    "dilation": (nn.Conv(3, SQUARE, kernel_dilation=2), (2, 5, 6, 4)),
    "input dilation": (nn.Conv(3, SQUARE, padding=1, input_dilation=2), (2, 5, 6, 4)),
    "two strides": (nn.Conv(3, SQUARE, (1, 2)), (2, 5, 6, 4)),
    "precision": (nn.Conv(3, SQUARE, precision="highest"), (2, 5, 6, 4)),
    "volumes": (nn.Conv(3, (2, 2, 2)), (2, 3, 4, 3, 2)),
    "cropped": (nn.Conv(3, SQUARE, padding=((-1, -1), (0, 0))), (2, 8, 6, 4)),
    "too small": (nn.Conv(3, (5, 5), padding="VALID"), (2, 3, 3, 4)),
    "own": (nn.Conv(3, SQUARE, conv_general_dilated=jax.lax.conv_general_dilated), (2, 5, 6, 4)),
    "transposed": (nn.ConvTranspose(3, SQUARE), (2, 5, 6, 4)),
    "local": (nn.ConvLocal(3, SQUARE), (2, 5, 6, 4)),
}


def drawn(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def by_xla(function, *arguments):
    return "conv_general_dilated" in str(jax.make_jaxpr(function)(*arguments))


def compared(net, shape):
    """Whether a task computes a layer by XLA, after comparison with the layer by itself."""
    x, task = drawn(*shape), LinenTask(net)
    model = jax.jit(net.init)(jax.random.key(0), x)

    def scalar(apply, model, x):
        outputs = apply(model, x).ravel()
        return jnp.sum(jnp.cos(jnp.arange(outputs.size)) * outputs)

    @jax.jit
    def slopes(model, x):
        return [
            jax.value_and_grad(partial(scalar, apply), (0, 1))(model, x)
            for apply in (task.predict, net.apply)
        ]

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), *slopes(model, x))
    return by_xla(task.predict, model, x)


def quick_ones(names, cases):
    return [pytest.param(n, marks=[] if n in names else pytest.mark.costly) for n in cases]


@pytest.mark.parametrize("name", quick_ones(("same", "strides", "even kernel", "causal"), FAST))
def test_convolutions_of_a_users_network_are_fast_ones(name):
    assert not compared(*FAST[name])


@pytest.mark.parametrize("name", quick_ones(("groups", "dilation", "cropped", "own"), BY_XLA))
def test_what_the_kernels_lack_is_left_to_flax(name):
    if name in ("transposed", "local"):
        net, shape = BY_XLA[name]
        x = np.ones(shape, np.float32)
        model = jax.jit(net.init)(jax.random.key(0), x)
        apply, predict = map(jax.jit, (net.apply, LinenTask(net).predict))
        np.testing.assert_array_equal(predict(model, x), apply(model, x))
    else:
        assert compared(*BY_XLA[name])


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.relu(nn.BatchNorm(not train)(nn.Conv(3, SQUARE)(x)))
        return nn.Dense(10, name="head")(x.mean((1, 2)))


class OfNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.conv = nnx.List([nnx.Conv(1, 3, SQUARE, rngs=rngs)])
        self.head = nnx.Linear(3, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.conv[0](x)).mean((1, 2)))


@pytest.mark.costly
@pytest.mark.parametrize("net", [Net(), OfNnx, "cnn"], ids=["linen", "nnx", "cnn"])
def test_xla_can_be_asked_for(net):
    data = pfl.load_dataset("digits")
    partition = pfl.make_partition("iid", data, 3, seed=0)
    tasks = [
        pfl.federate(data, partition, net, platform=platform, convolutions=how).task
        for platform, how in (("cpu", "auto"), ("cpu", "xla"), ("tpu", "auto"))
    ]
    x = drawn(2, 8, 8, 1)
    model = jax.jit(tasks[0].initial_model)(jax.random.key(0), x)
    assert [by_xla(task.predict, model, x) for task in tasks] == [False, True, True]
    fast, slow = jax.jit(lambda x: [task.predict(model, x) for task in tasks[:2]])(x)
    np.testing.assert_allclose(fast, slow, 1e-4, 1e-5)


@pytest.mark.costly
def test_modules_are_left_as_they_are():
    module, x = OfNnx(rngs=nnx.Rngs(0)), jnp.ones((2, 8, 8, 1))
    task = as_task(module)
    model = jax.eval_shape(task.init, jax.random.key(0), x)
    jax.eval_shape(lambda model: task.apply(model, x, *EVALUATION).logits, model)
    assert module.conv[0].conv_general_dilated is jax.lax.conv_general_dilated
    assert by_xla(module, x)
    net = Net()
    model = jax.eval_shape(net.init, jax.random.key(0), x)
    jax.eval_shape(LinenTask(net).predict, model, x)
    assert by_xla(net.apply, model, x)


def test_another_way_to_convolve_is_refused():
    data = pfl.load_dataset("digits")
    partition = pfl.make_partition("iid", data, 3, seed=0)
    with pytest.raises(pfl.InputError, match=r"Unknown convolutions 'xlaa'. Did you mean 'xla'"):
        pfl.federate(data, partition, "cnn", convolutions="xlaa")
