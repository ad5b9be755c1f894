"""Adapters on layers of linen, NNX and Equinox: the network of the merged kernels."""

import importlib.util

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as pfl
from fedjax_pfl.models import layers
from fedjax_pfl.models.adapters import WithAdapters, with_adapters
from fedjax_pfl.models.task import EVALUATION, as_task
from fedjax_pfl.utils import trees

X = np.random.default_rng(0).normal(size=(3, 6, 7, 2)).astype(np.float32)
SHAPE = jax.ShapeDtypeStruct(X.shape, jnp.float32)
WITHOUT_EQUINOX = importlib.util.find_spec("equinox") is None


class OwnLayers(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = layers.Conv(4, (3, 2), 1, stride=2, use_bias=False, name="a")(x)
        x = layers.Conv(5, (2, 2), name="b")(x, lambda x: layers.max_pool(x, 2, 1))
        return layers.Dense(3, name="head")(x.reshape(len(x), -1))


class Stacked(nn.Module):
    """Its kernels get an axis of layers, so that it takes no adapters."""

    @nn.compact
    def __call__(self, x, _):
        return nn.Dense(x.shape[-1])(x), None


class OfFlax(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), (2, 1), kernel_dilation=(1, 2), name="a")(x)
        x = nn.relu(nn.Conv(6, (1, 1), feature_group_count=2, name="groups")(x))
        x = nn.Conv(3, 3, padding="CIRCULAR", name="b")(x.reshape(len(x), -1, x.shape[-1]))
        scanned = nn.scan(Stacked, variable_axes={"params": 0}, split_rngs={"params": True})
        x, _ = scanned(name="stacked")(x, jnp.zeros(2))
        return nn.DenseGeneral(3, (-2, -1), name="head")(x)


class OfNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.a = nnx.Conv(2, 4, (3, 3), strides=2, rngs=rngs)
        self.groups = nnx.Conv(4, 4, (1, 1), feature_group_count=2, rngs=rngs)
        self.of_list = nnx.List([nnx.Linear(4, 4, use_bias=False, rngs=rngs)])
        self.mix = nnx.LinearGeneral((4, 4), (2, 3), axis=(2, 3), rngs=rngs)
        self.head = nnx.Linear(6, 3, rngs=rngs)

    def features(self, x):
        return self.mix(self.of_list[0](nnx.relu(self.groups(self.a(x))))).mean(1).reshape(-1, 6)

    def __call__(self, x):
        return self.head(self.features(x))


def of_equinox():
    import equinox as eqx

    class Net(eqx.Module):
        a: eqx.nn.Conv2d
        b: eqx.nn.Conv2d
        groups: eqx.nn.Conv2d
        fc: eqx.nn.MLP
        head: eqx.nn.Linear

        def __init__(self, key):
            one, two, three, four, five = jax.random.split(key, 5)
            self.a = eqx.nn.Conv2d(2, 4, 3, 2, padding=1, key=one)
            self.b = eqx.nn.Conv2d(4, 3, 2, use_bias=False, key=two)
            self.groups = eqx.nn.Conv2d(3, 3, 1, groups=3, key=three)
            self.fc = eqx.nn.MLP(3, 5, 4, 1, key=four)
            self.head = eqx.nn.Linear(5, 3, key=five)

        def features(self, x):
            x = self.b(jax.nn.relu(self.a(x.transpose(2, 0, 1))))
            return self.fc(self.groups(x).mean((1, 2)))

        def __call__(self, x):
            return self.head(self.features(x))

    return Net(jax.random.key(0))


NETWORKS = {
    "own": (OwnLayers, "a b head"),
    "linen": (OfFlax, "a b head"),
    "nnx": (lambda: OfNnx(rngs=nnx.Rngs(0)), "a head mix of_list/0"),
    "equinox": (of_equinox, "a b fc/layers/0 fc/layers/1 head"),
}
OPTIONAL = [pytest.mark.costly, pytest.mark.skipif(WITHOUT_EQUINOX, reason="needs equinox")]
EACH = [
    "own",
    *(pytest.param(name, marks=pytest.mark.costly) for name in ("linen", "nnx")),
    pytest.param("equinox", marks=OPTIONAL),
]


@pytest.fixture(params=EACH, scope="module")
def network(request):
    """(plain task, task with adapters of rank 2, their model with B not zero)."""
    make, names = NETWORKS[request.param]
    plain = as_task(make())
    begun = plain.initial_model(jax.random.key(1), X)
    frozen = tuple(trees.path_name(path) for path, _ in jax.tree.leaves_with_path(begun))
    task = with_adapters(plain, SHAPE, frozen, 2, 3.0, "*")
    assert sorted("/".join(path) for path, _, _ in task.layers) == names.split()
    return plain, task, task.initial_model(jax.random.key(1), X)


def moved(task, model):
    rng = np.random.default_rng(1)
    params = model["params"]
    for path, _, outputs in task.layers:
        b = jnp.asarray(rng.normal(size=(2, outputs)), jnp.float32)
        own = {**trees.at(params, path), "lora_b": b}
        params = trees.replace_at(params, path, own)
    return {"params": params}


def merged(task: WithAdapters, params):
    for path, _, _ in task.layers:
        own = dict(trees.at(params, path))
        product = own.pop("lora_a") @ own.pop("lora_b")
        own[task.kernel] += 1.5 * task.in_shape(product, own[task.kernel])
        params = trees.replace_at(params, path, own)
    return {"params": params}


@pytest.mark.costly
def test_factors_b_of_zero_give_the_base_to_the_bit(network):
    plain, task, model = network
    begun = plain.initial_model(jax.random.key(1), X)
    np.testing.assert_array_equal(task.predict(model, X), plain.predict(begun, X))


def test_outputs_are_those_of_merged_kernels(network):
    plain, task, model = network
    model = moved(task, model)
    wanted = plain.predict(merged(task, model["params"]), X)
    assert np.abs(wanted - plain.predict(merged(task, model["params"]), 0 * X)).max() > 0.1
    np.testing.assert_allclose(task.predict(model, X), wanted, 1e-4, 1e-4)
    if task.framework != "linen":
        features, _ = task.embed(model, X, *EVALUATION)
        np.testing.assert_allclose(task.classify(model, features), wanted, 1e-4, 1e-4)


@pytest.mark.costly
@pytest.mark.parametrize("name", EACH)
def test_the_server_merges_a_trained_adapter(name):
    """With a single client FLoRA's changed kernels are those of FedAvg's adapters."""
    rng = np.random.default_rng(0)
    data = pfl.dataset_from_arrays("a", rng.normal(size=(12, 6, 7, 2)), np.arange(12) % 3)
    partition = pfl.make_partition("iid", data, 1, 0)
    one = pfl.federate(
        data, partition, NETWORKS[name][0](), lora_rank=2, lora_alpha=3.0, local_steps=3,
        freeze="all", learning_rate=0.1,
    )  # fmt: skip
    made = [
        pfl.simulate(pfl.make_algorithm(algorithm), one, 1).predict(0, X, outputs=True)
        for algorithm in ("fedavg", "flora")
    ]
    np.testing.assert_allclose(made[0], made[1], 1e-4, 1e-4)
    begun = one.with_backbone(jax.random.key(0))
    first = begun.task.predict(begun.initial_model(jax.random.key(0)), X)
    assert np.abs(made[0] - first).max() > 0.001
