"""Matrix products of models and of their weights, at the highest precision that a backend has.

By default accelerators round the factors to tf32 or bfloat16. A network's own products may be so; a
server that compares and averages models can't afford it. Every product in `aggregation` and in
`algorithms` is one of these, or optax's, which has the same precision.

Stacks are mixed in their own shape [M, ..., d], not as [M, P]: a TPU would copy them, as it keeps
the last two axes in tiles.
"""

import jax
import jax.numpy as jnp
from jax import lax

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


def pairs(a: jax.Array, b: jax.Array) -> jax.Array:
    """<a_i, b_j>, [A, B], of [A, ...] and [B, ...] that are alike but for their first axis."""
    # With one axis to sum over: a CPU would transpose b for two.
    a, b = (side.reshape(len(side), -1) for side in (a, b))
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=EXACT)


def dots(stack: jax.Array, one: jax.Array) -> jax.Array:
    """<stack_j, one>, [B], of [B, ...] and [...]."""
    return jnp.tensordot(stack, one, axes=one.ndim, precision=EXACT)
