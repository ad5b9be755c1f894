"""Pairwise squared distances, cosines and Gram matrices of stacked models.

Functions take pytrees whose leaves lead with the client axis ([A, ...] and [B, ...]) and return
[A, B]. Leaves are contracted one by one at the highest precision of the backend, since tf32 or
bfloat16 products would swamp the small distances on which personalized algorithms depend. Wide
leaves are processed in blocks, so that no temporary is as large as a stack of models; so are the
clients of `b` that are not on the device (`streamed`).
"""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.aggregation import column_exchange, products, streamed
from fedjax_pfl.execution.mesh import platform
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Matrix, PerMember, Rows, Stack, Tree

BLOCK = 2**20  # elements of a block: 4 MB in float32
ON_CHIP = 2**24  # elements up to which a TPU takes a leaf of all models as one block: 64 MB
FEW = 4  # models whose mean serves as the common centre on a TPU


def gram(a: Stack, b: Stack, centred: bool = False) -> Matrix:
    """Return inner products <a_i, b_j>, [A, B]; with `centred`, of b minus its mean."""
    if streamed.blocks(b) is not None:
        centre = _centre(b) if centred else None
        return streamed.map_blocks(lambda some: gram(a, _shifted(some, centre)), b)
    b = streamed.materialize(b)

    def block(x, y):
        return products.pairs(x, y - _mean_row(y) if centred else y)

    return _over_blocks(block, a, b)


def dots(stack: Stack, one: Tree) -> PerMember:
    """Return inner products <stack_j, one> of models [B, ...] with a single model, [B]."""
    return _sum_leaves(jax.tree.map(products.dots, stack, one))


def squared_norms(a: Stack) -> PerMember:
    """Return |a_i|^2 over all leaves, [A]."""
    return _sum_leaves(jax.tree.map(products.squares, a))


def squared_distances(a: Stack, b: Stack, partners: Rows | None = None) -> Matrix:
    """Return |a_i - b_j|^2, [A, B], accurate also for models that differ little.

    Expanding the square of raw weights suffers from cancellation: their norms are 1e2 to 1e3, and
    relevant distances 1e-4 to 1e-1. Both stacks are therefore shifted by the mean of `b` (on a TPU
    by the mean of a few rows), which changes no distance. Rows of `a` and `b` of the same client
    are much nearer to each other, so these pairs are summed directly. If a further pair is so close
    relative to its distance from the centre that digits would be lost (tight clusters far apart, a
    client about to diverge), all pairs are summed directly.

    Args:
      a, b: stacks [A, ...] and [B, ...].
      partners: int [A], the row of `b` of the same client as each row of `a`; by default the same
        row if both have the same length, else none.

    Raises:
      InputError: the trees have no leaves, so there is nothing to compare.
    """
    if not jax.tree.leaves(b):
        raise InputError("Models without a shared trainable leaf can't be compared.")
    rows, columns = (len(jax.tree.leaves(side)[0]) for side in (a, b))
    paired_up = partners is not None or rows == columns
    partner_of = jnp.arange(rows) if partners is None else partners

    def sums(x, y, partners=None):
        inner = tuple(range(1, x.ndim))
        near = y if partners is None else y[partners]
        paired = jnp.sum(jnp.square(x - near), inner) if paired_up else jnp.zeros((), x.dtype)
        centre = _near_all(y)
        x, y = x - centre, y - centre
        return products.pairs(x, y), jnp.sum(x * x, inner), jnp.sum(y * y, inner), paired

    others = () if partners is None else (partners,)
    offloaded = streamed.blocks(b) is not None
    if offloaded:
        crossed, norms_a, norms_b, paired = _offloaded_sums(a, b, partners)
    else:
        b = streamed.materialize(b)
        crossed, norms_a, norms_b, paired = _over_blocks(sums, a, b, *others)
    scale = norms_a[:, None] + norms_b[None, :]
    distances = jnp.maximum(scale - 2 * crossed, 0)
    trusted = distances >= 1e-3 * scale
    if paired_up:
        own = partner_of[:, None] == jnp.arange(columns)
        distances = jnp.where(own, paired[:, None], distances)
        trusted |= own

    def one_by_one():
        # In blocks: if devices of one CPU share `b`, each gathers what is mapped over.
        def block(x, y):
            if len(x) < rows:  # a part, see `sum_over_columns`: map over the fewer rows
                return lax.map(lambda one: squared_norms(one - y), x)
            return lax.map(lambda other: squared_norms(x - other), y).T

        if offloaded:
            direct = streamed.map_blocks(lambda some: _over_blocks(block, a, some), b)
        else:
            direct = _over_blocks(block, a, b)
        return jnp.where(all_trusted, distances, direct)

    all_trusted = jnp.all(trusted)
    return lax.cond(_in_all_runs(all_trusted), lambda: distances, one_by_one)


def _offloaded_sums(a: Stack, b: Stack, partners: Rows | None) -> tuple[jax.Array, ...]:
    """Return what `sums` in `squared_distances` adds up over all leaves, for an offloaded `b`."""
    centre = _centre(b)
    near = a if partners is None else trees.take(b, partners)
    paired = squared_norms(jax.tree.map(jnp.subtract, a, near))
    a = _shifted(a, centre)

    def rows_of(some):
        some = _shifted(some, centre)
        return jnp.concatenate([gram(a, some), squared_norms(some)[None]])

    results = streamed.map_blocks(rows_of, b)
    return results[:-1], squared_norms(a), results[-1], paired


def _centre(b: Stack) -> Tree:
    """Return the mean of an offloaded stack."""
    count = len(jax.tree.leaves(b)[0])

    def of_block(some, rows, real):
        return jax.tree.map(lambda x: products.rows(real.astype(x.dtype) / count, x), some)

    return streamed.sum_over_blocks(of_block, b)


def _shifted(stack: Stack, centre: Tree | None) -> Stack:
    return stack if centre is None else jax.tree.map(jnp.subtract, stack, centre)


@jax.custom_batching.custom_vmap
def _in_all_runs(flag: jax.Array) -> jax.Array:
    """Return the flag; under vmap over runs, whether it holds in all of them.

    A `lax.cond` on it then stays a branch; with a flag for each run it would compute both branches.
    """
    return flag


@_in_all_runs.def_vmap
def _(size, batched, flag):
    return _in_all_runs(jnp.all(flag, axis=0)), False


def cosines(a: Stack, b: Stack) -> Matrix:
    """Return cos(a_i, b_j), [A, B]; 0 if either vector is zero.

    Cosines are not translation invariant: pass updates (differences of models) instead of weights.
    """
    if streamed.is_offloaded(b):
        return streamed.map_blocks(lambda some: cosines(a, some), b)
    return gram(_unit_rows(a), _unit_rows(b))


def row_cosines(a: Stack, b: Stack) -> PerMember:
    """Return cos(a_i, b_i), [A]; 0 if either vector is zero."""
    a, b = _unit_rows(a), _unit_rows(b)
    products = jax.tree.map(lambda x, y: jnp.sum((x * y).reshape(len(x), -1), axis=1), a, b)
    return _sum_leaves(products)


def _unit_rows(a: Stack) -> Stack:
    """Scale rows to length 1, except rows of zeros, without under- or overflow of squares."""

    def scaled(rows: jax.Array) -> Tree:
        rows = jnp.where(rows > 0, rows, 1)
        return jax.tree.map(lambda x: x / trees.expand_to(x, rows), a)

    peaks = jax.tree.map(lambda x: jnp.max(jnp.abs(x).reshape(len(x), -1), axis=1), a)
    a = scaled(lax.stop_gradient(jnp.max(jnp.stack(jax.tree.leaves(peaks)), axis=0)))
    squares = squared_norms(a)
    return scaled(jnp.sqrt(jnp.where(squares > 0, squares, 1)))


def _over_blocks(fn: Callable[..., Any], a: Tree, b: Tree, *others: Rows) -> Tree:
    """Sum `fn(x [A, ..., d], y [B, ..., d], *others)` over all leaves, wide ones in blocks.

    If clients are sharded over devices, each device processes some columns of all clients. `fn`
    must not close over arrays.
    """

    def of_columns(a, b, *others):
        return _on_one(lambda x, y: fn(x, y, *others), a, b)

    return column_exchange.sum_over_columns(of_columns, a, b, others=others)


def _on_one(fn: Callable[..., Any], a: Tree, b: Tree) -> Tree:
    """Apply `_over_blocks` on one device."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    totals = []
    for x, y in leaves:
        # Merge all but the last axis: no copy where the last two are tiled, as on a TPU.
        x, y = (side.reshape(len(side), -1, *side.shape[2:][-1:]) for side in (x, y))
        if platform() == "tpu" and max(x.size, y.size) <= ON_CHIP:
            totals.append(fn(x, y))
            continue
        most = max(BLOCK // max(len(x), len(y), 1), 1)
        length = max(most // math.prod(x.shape[2:]), 1)
        blocks = x.shape[1] // length
        if blocks < 2:  # flat, as a CPU then makes fewer copies
            totals.append(fn(x.reshape(len(x), -1), y.reshape(len(y), -1)))
            continue

        def add(k, total, x=x, y=y, length=length):
            block = (lax.dynamic_slice_in_dim(side, k * length, length, 1) for side in (x, y))
            return jax.tree.map(jnp.add, total, fn(*block))

        # The first summand is the last block with the remainder.
        first = x.shape[1] - (blocks - 1) * length
        totals.append(lax.fori_loop(0, blocks - 1, add, fn(x[:, -first:], y[:, -first:])))
    return jax.tree.map(lambda *each: sum(each), *totals) if totals else jnp.zeros(())


def _mean_row(x: jax.Array) -> jax.Array:
    """Return the mean over the leading axis, as a product, which is faster on CPUs."""
    return products.rows(jnp.full(len(x), 1 / len(x), x.dtype), x)


def _near_all(x: jax.Array) -> jax.Array:
    """Return a point near all rows: their mean, or on a TPU the mean of a few rows."""
    if platform() != "tpu":
        return _mean_row(x)
    few = min(FEW, len(x))
    return reduce(jnp.add, (x[i] for i in range(few))) / few


def _sum_leaves(tree: Tree) -> jax.Array:
    return jnp.asarray(sum(jax.tree.leaves(tree)))  # 0 for an empty tree
