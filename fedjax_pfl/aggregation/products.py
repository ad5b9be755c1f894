"""Matrix products of models and of their weights, at the highest precision that a backend has.

By default accelerators round the factors to tf32 or bfloat16. A network's own products may be so; a
server that compares and averages models can't afford it. Every product in `aggregation` and in
`algorithms` is one of these, or optax's, which has the same precision.

Stacks are mixed in their own shape [M, ..., d], not as [M, P]: a TPU would copy them, as it keeps
the last two axes in tiles. In a round for a TPU some sums have another order.
"""

from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.execution.mesh import platform, shared_clients
from fedjax_pfl.utils import trees

EXACT = lax.Precision.HIGHEST


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a @ b`."""
    return jnp.matmul(a, b, precision=EXACT)


def power(matrix: jax.Array, exponent: int) -> jax.Array:
    """The product of so many equal square matrices."""
    with jax.default_matmul_precision("highest"):
        return jnp.linalg.matrix_power(matrix, exponent)


def rows(weights: jax.Array, stack: jax.Array) -> jax.Array:
    """sum_j weights[.., j] stack[j]: [.., B] and [B, ...] give [.., ...]."""
    return jnp.tensordot(weights, stack, axes=1, precision=EXACT)


def mean(weights: jax.Array, stack: jax.Array) -> jax.Array:
    """sum_j weights[j] stack[j] of whole models: [B] and [B, ...] give [...].

    A TPU would make no product of it, but reduce over B: it combines parts of the stack first.
    """
    # Devices that share the clients each add up their own first.
    if platform() != "tpu" or shared_clients() is not None:
        return rows(weights, stack)
    some = trees.parts(stack, 0)
    of_some = weights.reshape(len(some), -1)
    scaled = (trees.expand_to(x, w) * x for x, w in zip(some, of_some, strict=True))
    return jnp.sum(reduce(jnp.add, scaled), axis=0)


def squares(stack: jax.Array) -> jax.Array:
    """|stack_j|^2, [B], of [B, ...]."""
    if platform() != "tpu":
        return jnp.sum(jnp.square(stack).reshape(len(stack), -1), 1)
    total = reduce(jnp.add, map(jnp.square, trees.parts(stack, 1)))
    return jnp.sum(total, tuple(range(1, stack.ndim)))


def pairs(a: jax.Array, b: jax.Array) -> jax.Array:
    """<a_i, b_j>, [A, B], of [A, ...] and [B, ...] that are alike but for their first axis."""
    # With one axis to sum over: a CPU would transpose b for two.
    a, b = (side.reshape(len(side), -1) for side in (a, b))
    if platform() == "gpu":  # with a transposition before it, XLA would find no tiles for it
        a, b = lax.optimization_barrier((a, b))
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=EXACT)


def dots(stack: jax.Array, one: jax.Array) -> jax.Array:
    """<stack_j, one>, [B], of [B, ...] and [...]."""
    return jnp.tensordot(stack, one, axes=one.ndim, precision=EXACT)
