"""Computations on offloaded stacks, which pass through the device in blocks.

A stack [N, ...] of readable leaves (`trees.PartialLeaf`) is read in blocks that are at most as
large as the rows on the device or `BLOCK`. A block contributes a sum over its clients, or a column
per client. A stack that fits into one block is read at once; otherwise sums have another order.
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
    """The rows of a stack in blocks, the last of which is padded with the last row.

    Attributes:
      rows: int32 [K, B].
      real: bool [K, B], False for padding.
      count: N.
    """

    rows: Rows
    real: Mask
    count: int


def is_offloaded(stack: Stack) -> bool:
    """Return whether some rows of a stack are not on the device but can be read."""
    return any(isinstance(x, trees.PartialLeaf) and x.readable for x in jax.tree.leaves(stack))


def blocks(stack: Stack) -> Blocks | None:
    """Return the blocks of a stack, or None if it passes through the device at once."""
    leaves = [x for x in jax.tree.leaves(stack) if isinstance(x, trees.PartialLeaf)]
    if not leaves:
        return None
    count, there = leaves[0].shape[0], len(leaves[0].values)
    model = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    width = max(there, BLOCK // max(model, 1))
    if width >= count:
        return None
    at = jnp.arange(-(-count // width) * width, dtype=jnp.int32).reshape(-1, width)
    return Blocks(jnp.minimum(at, count - 1), at < count, count)


def materialize(stack: Stack) -> Stack:
    """Return a stack with all its rows on the device."""
    if not is_offloaded(stack):
        return stack
    count = len(jax.tree.leaves(stack)[0])
    return trees.take(stack, jnp.arange(count, dtype=jnp.int32))


def map_blocks(fn: Callable[[Stack], jax.Array], stack: Stack) -> jax.Array:
    """Return `fn(stack)`, [A, N], computed by blocks, of which `fn` makes columns [A, B]."""
    divided = blocks(stack)
    if divided is None:
        return fn(materialize(stack))
    parts = lax.map(lambda rows: fn(trees.take(stack, rows)), divided.rows)
    return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)[:, : divided.count]


def sum_over_blocks(
    fn: Callable[[Stack, Rows, Mask], Tree], stack: Stack, contributing: Mask | None = None
) -> Tree:
    """Sum `fn(block, rows [B], real [B])` over a stack's blocks.

    Args:
      fn: function of a block, its rows, and which of them are not padding.
      stack: the stack.
      contributing: bool [N], rows that contribute; blocks without such rows are not read.
    """
    divided = blocks(stack)
    if divided is None:
        count = len(jax.tree.leaves(stack)[0])
        return fn(materialize(stack), jnp.arange(count, dtype=jnp.int32), jnp.ones(count, bool))
    rows, used = divided.rows, jnp.int32(len(divided.rows))
    if contributing is not None:  # those first
        order = jnp.argsort(~contributing, stable=True).astype(jnp.int32)
        rows = order[rows]
        used = -(-jnp.sum(contributing) // rows.shape[1])

    def add(k, total):
        block = trees.take(stack, rows[k])
        return jax.tree.map(jnp.add, total, fn(block, rows[k], divided.real[k]))

    shapes: Any = jax.eval_shape(lambda: fn(trees.take(stack, rows[0]), rows[0], divided.real[0]))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return lax.fori_loop(0, used, add, zeros)
