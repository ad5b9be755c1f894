"""Matrix products of models and weights at the highest precision of the backend.

By default accelerators round factors to tf32 or bfloat16, which is too coarse for comparing and
averaging models. All products in `aggregation` and `algorithms` use these functions, or those of
optax, which have the same precision.

Stacks keep their shape [M, ..., d] instead of [M, P], which a TPU would have to copy since it tiles
the last two axes. On a TPU some sums have another order.
"""

from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.execution.mesh import platform, shared_clients
from fedjax_pfl.utils import trees

EXACT = lax.Precision.HIGHEST


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the matrix product `a @ b`."""
    return jnp.matmul(a, b, precision=EXACT)


def power(matrix: jax.Array, exponent: int) -> jax.Array:
    """Return a power of a square matrix."""
    with jax.default_matmul_precision("highest"):
        return jnp.linalg.matrix_power(matrix, exponent)


def rows(weights: jax.Array, stack: jax.Array) -> jax.Array:
    """Return sum_j weights[.., j] stack[j]: [.., B] times [B, ...] is [.., ...]."""
    return jnp.tensordot(weights, stack, axes=1, precision=EXACT)


def mean(weights: jax.Array, stack: jax.Array) -> jax.Array:
    """Return sum_j weights[j] stack[j]: [B] times [B, ...] is [...].

    A TPU would reduce over B instead of using a product, so parts of the stack are combined first.
    """
    # With sharded clients each device sums its own first.
    if platform() != "tpu" or shared_clients() is not None:
        return rows(weights, stack)
    some = trees.parts(stack, 0)
    of_some = weights.reshape(len(some), -1)
    scaled = (trees.expand_to(x, w) * x for x, w in zip(some, of_some, strict=True))
    return jnp.sum(reduce(jnp.add, scaled), axis=0)


def squares(stack: jax.Array) -> jax.Array:
    """Return |stack_j|^2, [B], of [B, ...]."""
    if platform() != "tpu":
        return jnp.sum(jnp.square(stack).reshape(len(stack), -1), 1)
    total = reduce(jnp.add, map(jnp.square, trees.parts(stack, 1)))
    return jnp.sum(total, tuple(range(1, stack.ndim)))


def pairs(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return <a_i, b_j>, [A, B], of [A, ...] and [B, ...]."""
    # Flat, since a CPU would transpose b to sum over two axes.
    a, b = (side.reshape(len(side), -1) for side in (a, b))
    if platform() == "gpu":  # fused with a transposition, XLA finds no tiling
        a, b = lax.optimization_barrier((a, b))
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=EXACT)


def dots(stack: jax.Array, one: jax.Array) -> jax.Array:
    """Return <stack_j, one>, [B], of [B, ...] and [...]."""
    return jnp.tensordot(stack, one, axes=one.ndim, precision=EXACT)
