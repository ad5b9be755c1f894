"""Products of models and of their weights have the highest precision, on accelerators too."""

import ast
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import fedjax_pfl as pfl
from fedjax_pfl.aggregation import products
from fedjax_pfl.engine import compiled
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.execution.mesh import CLIENTS, sharing
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.testing.toys import toy_for
from fedjax_pfl.utils import trees
from tools import accelerators

ROOMS = ("aggregation", "algorithms")
PLAIN = {"dot", "einsum", "inner", "matmul", "matrix_power", "tensordot", "dot_general", "vdot"}


class Sums(nn.Module):
    """A linear layer without any product of matrices."""

    features: int

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.normal(), (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        return jnp.sum(x[:, :, None] * kernel, axis=1) + bias


class Network(nn.Module):
    """So that all products of a round are the algorithm's."""

    def setup(self):
        self.hidden, self.head = Sums(5), Sums(3)

    def features(self, x):
        return nn.tanh(self.hidden(x))

    def __call__(self, x):
        return self.head(self.features(x))


def test_products_against_numpy():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 4, 5, 2), (6, 4, 5, 2)))
    weights = rng.normal(size=(7, 6)).astype(np.float32)
    close = {"rtol": 1e-5, "atol": 1e-5}
    crossed = np.einsum("aijk,bijk->ab", a, b)
    np.testing.assert_allclose(products.pairs(a, b), crossed, **close)
    np.testing.assert_allclose(products.dots(a, b[0]), crossed[:, 0], **close)
    np.testing.assert_allclose(products.rows(weights, b), np.tensordot(weights, b, 1), **close)
    np.testing.assert_allclose(
        products.rows(weights[0], b), np.tensordot(weights[0], b, 1), **close
    )
    np.testing.assert_allclose(products.matmul(weights, weights.T), weights @ weights.T, **close)
    square = crossed[:, :3]
    np.testing.assert_allclose(products.power(square, 3), square @ square @ square, rtol=1e-4)


@pytest.mark.costly
def test_sums_in_parts_of_a_round_for_a_tpu():
    rng = np.random.default_rng(1)
    stack, weights = rng.normal(size=(14, 30, 50)).astype(np.float32), np.full(14, 0.5, np.float32)

    def both(weights, stack):
        return products.mean(weights, stack), products.squares(stack)

    for platform in ("cpu", "tpu"):
        with sharing(Execution(0, "map", platform=platform)):
            text = str(jax.make_jaxpr(both)(weights, stack))
            mean, squares = both(weights, jnp.asarray(stack))
        assert ("dot_general" in text) == (platform == "cpu") == ("slice" not in text)
        np.testing.assert_allclose(mean, stack.sum(0) / 2, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(squares, np.square(stack).sum((1, 2)), rtol=1e-5)
    assert [x.shape for x in trees.parts(jnp.asarray(stack), 1)] == [(14, 3, 50)] * 10


def test_no_other_products_are_in_the_server():
    """optax's inner products have that precision, too."""
    root = Path(pfl.__file__).parent
    files = [path for room in ROOMS for path in (root / room).rglob("*.py")]
    assert len(files) > 40
    for path in files:
        if path.name == "products.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(getattr(node, "op", None), ast.MatMult), f"{path}:{node.lineno}"
            plain = isinstance(node, ast.Attribute) and node.attr in PLAIN
            if plain and ast.unparse(node.value) != "optax.tree":
                assert ast.unparse(node.value) == "products", f"{path}:{node.lineno}"


QUICK = ("cwfedavg", "sfl")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.costly)
        for name in pfl.core.ALGORITHMS
    ],
)
def test_a_round_has_no_other_product(name):
    algorithm = pfl.make_algorithm(name)
    if algorithm.batch_norm == "local":
        pytest.skip("its network has batch normalization, which sums by a product")
    federation = toy_for(algorithm, model=Network(), dtype="float32")
    made = checked_program(algorithm, federation, 2)
    states = made._shapes
    traced = compiled.advance.trace(*made._operands(states, 0, 0), **made._options)
    result = [one for one in equations(traced.jaxpr.jaxpr) if one.primitive.name == "dot_general"]
    for one in result:
        assert one.params["precision"] == (products.EXACT,) * 2, str(one.source_info.traceback)
    assert result or name not in QUICK


def equations(jaxpr):
    """Of a program and all that it calls."""
    for one in jaxpr.eqns:
        yield one
        for inner in core.jaxprs_in_params(one.params):
            yield from equations(inner)


@pytest.mark.parametrize("rows", [1000, 10_000])
def test_a_gpu_tiles_pairs_of_exchanged_columns(rows):
    """Fused with the exchange's transposition, these products have no tiles there."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="JAX's plugin for CUDA is not installed")
    mesh = Mesh(accelerators.devices("h100:8"), CLIENTS)

    def one_device(a, b):
        a, b = (lax.all_to_all(x, CLIENTS, 1, 0, tiled=True) for x in (a, b))
        return lax.psum_scatter(products.pairs(a - b[:1], b - b[:1]), CLIENTS, tiled=True)

    with sharing(Execution(0, "vmap", 1, platform="gpu")):
        spec = PartitionSpec(CLIENTS)
        shared = jax.shard_map(one_device, mesh=mesh, in_specs=spec, out_specs=spec)
        stack = jax.ShapeDtypeStruct((rows, 720), jnp.float32, sharding=NamedSharding(mesh, spec))
        lowered = jax.jit(shared).lower(stack, stack)
    assert lowered.compile(compiler_options=accelerators.COMPILER_OPTIONS["gpu"]).memory_analysis()
