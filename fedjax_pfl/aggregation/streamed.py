"""Work on stacks of which the device has some rows alone: the others are read block by block.

A stack [N, ...] of `trees.Fetched` leaves whose other rows can be read passes through the device in
blocks, each at most as large as the rows that are there or as `BLOCK`. What is computed of a block
is a sum over its clients, or a column for each. A stack that fits into one block is read whole, as
if it were on the device; else sums are added up in another order.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.utils import trees
from fedjax_pfl.utils.typing import Mask, Rows, Stack, Tree

BLOCK = 2**22  # elements of the models of a block


class Blocks(NamedTuple):
    """The rows of a stack in blocks; the last one is filled up with its last row.

    Attributes:
      rows: int32 [K, B].
      real: bool [K, B], False for what fills up.
      count: N.
    """

    rows: Rows
    real: Mask
    count: int


def is_offloaded(stack: Stack) -> bool:
    """Whether some rows of a stack are not on the device, and can be read."""
    return any(isinstance(x, trees.Fetched) and x.readable for x in jax.tree.leaves(stack))


def blocks(stack: Stack) -> Blocks | None:
    """How a stack goes through the device; None where it does as a whole."""
    leaves = [x for x in jax.tree.leaves(stack) if isinstance(x, trees.Fetched)]
    if not leaves:
        return None
    count, there = leaves[0].shape[0], len(leaves[0].values)
    model = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    width = max(there, BLOCK // max(model, 1))
    if width >= count:
        return None
    at = jnp.arange(-(-count // width) * width, dtype=jnp.int32).reshape(-1, width)
    return Blocks(jnp.minimum(at, count - 1), at < count, count)


def here(stack: Stack) -> Stack:
    """A stack with all its rows on the device, read at once where they are elsewhere."""
    if not is_offloaded(stack):
        return stack
    count = len(jax.tree.leaves(stack)[0])
    return trees.take(stack, jnp.arange(count, dtype=jnp.int32))


def columns(fn: Callable[[Stack], jax.Array], stack: Stack) -> jax.Array:
    """`fn(stack)`, [A, N], where `fn` gives a column for each row of a block alone, [A, B]."""
    found = blocks(stack)
    if found is None:
        return fn(here(stack))
    parts = lax.map(lambda rows: fn(trees.take(stack, rows)), found.rows)
    return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)[:, : found.count]


def added(
    fn: Callable[[Stack, Rows, Mask], Tree], stack: Stack, wanted: Mask | None = None
) -> Tree:
    """The sum of `fn(block, its rows [B], which of them count [B])` over a stack's blocks.

    Args:
      wanted: bool [N], the rows that matter; blocks without any of these are not read.
    """
    found = blocks(stack)
    if found is None:
        count = len(jax.tree.leaves(stack)[0])
        return fn(here(stack), jnp.arange(count, dtype=jnp.int32), jnp.ones(count, bool))
    rows, used = found.rows, jnp.int32(len(found.rows))
    if wanted is not None:  # those first
        order = jnp.argsort(~wanted, stable=True).astype(jnp.int32)
        rows = order[rows]
        used = -(-jnp.sum(wanted) // rows.shape[1])

    def add(k, total):
        block = trees.take(stack, rows[k])
        return jax.tree.map(jnp.add, total, fn(block, rows[k], found.real[k]))

    shapes: Any = jax.eval_shape(
        lambda: fn(trees.take(stack, rows[0]), rows[0], found.real[0]),
    )
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return lax.fori_loop(0, used, add, zeros)
