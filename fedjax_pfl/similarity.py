"""Pairwise squared distances, cosines and Gram matrices of stacked models.

All take pytrees whose leaves lead with the client axis ([A, ...] and [B, ...]) and return [A, B].
Leaves are contracted one by one at the highest matrix-product precision the backend has (tf32 or
bfloat16 products would drown the small distances that the weights of personalized methods live
on), and their results summed.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.errors import InputError

Tree = Any


def gram(a: Tree, b: Tree) -> jax.Array:
    """Inner products <a_i, b_j> over all leaves, [A, B]."""

    def leaf_gram(x, y):
        x, y = x.reshape(x.shape[0], -1), y.reshape(y.shape[0], -1)
        return jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)

    return _sum_leaves(jax.tree.map(leaf_gram, a, b))


def squared_norms(a: Tree) -> jax.Array:
    """|a_i|^2 over all leaves, [A]."""
    return _sum_leaves(jax.tree.map(lambda x: jnp.sum(jnp.square(x).reshape(len(x), -1), 1), a))


def squared_distances(a: Tree, b: Tree) -> jax.Array:
    """|a_i - b_j|^2, [A, B], right also for models that differ by a small part of their norm.

    Expanding the square on raw weights cancels: their norms are 1e2 to 1e3 where the distances
    wanted are 1e-4 to 1e-1. Both stacks are therefore shifted by the mean of `b` first, which
    changes no distance. Where both have the same length, row i of one usually stands for the same
    client as row i of the other and is by far its nearest: the diagonal is summed directly. Where
    some pair is still so near, for its distance to the centre, that digits would be lost (tight
    clusters far apart, a client about to explode), all pairs are summed directly.

    Raises:
      InputError: trees without leaves: nothing is shared that clients could be compared by.
    """
    if not jax.tree.leaves(b):
        raise InputError("Models without a shared trainable leaf can't be compared.")
    centre = jax.tree.map(lambda y: jnp.mean(y, axis=0), b)
    x, y = (jax.tree.map(jnp.subtract, side, centre) for side in (a, b))
    scale = squared_norms(x)[:, None] + squared_norms(y)[None, :]
    distances = jnp.maximum(scale - 2 * gram(x, y), 0)
    trusted = distances >= 1e-3 * scale
    if distances.shape[0] == distances.shape[1]:
        own = jnp.eye(len(distances), dtype=bool)
        paired = squared_norms(jax.tree.map(jnp.subtract, a, b))
        distances = jnp.where(own, paired[:, None], distances)
        trusted |= own

    def one_by_one():
        def from_one(other):
            return squared_norms(jax.tree.map(jnp.subtract, a, other))

        return jax.lax.map(from_one, b).T

    return jax.lax.cond(jnp.all(trusted), lambda: distances, one_by_one)


def cosines(a: Tree, b: Tree) -> jax.Array:
    """cos(a_i, b_j), [A, B]; 0 where either vector is zero.

    A cosine is not translation invariant: pass updates (differences of models), never weights
    shifted by a common centre.
    """
    return gram(_unit_rows(a), _unit_rows(b))


def row_cosines(a: Tree, b: Tree) -> jax.Array:
    """cos(a_i, b_i), [A]; 0 where either vector is zero."""
    a, b = _unit_rows(a), _unit_rows(b)
    products = jax.tree.map(lambda x, y: jnp.sum((x * y).reshape(len(x), -1), axis=1), a, b)
    return _sum_leaves(products)


def _unit_rows(a: Tree) -> Tree:
    """Rows scaled to length 1, those of zeros left; squares neither under- nor overflow."""

    def scaled(rows: jax.Array) -> Tree:
        rows = jnp.where(rows > 0, rows, 1)
        return jax.tree.map(lambda x: x / rows.reshape((-1,) + (1,) * (x.ndim - 1)), a)

    peaks = jax.tree.map(lambda x: jnp.max(jnp.abs(x).reshape(len(x), -1), axis=1), a)
    a = scaled(jax.lax.stop_gradient(jnp.max(jnp.stack(jax.tree.leaves(peaks)), axis=0)))
    squares = squared_norms(a)
    return scaled(jnp.sqrt(jnp.where(squares > 0, squares, 1)))


def _sum_leaves(tree: Tree) -> jax.Array:
    return sum(jax.tree.leaves(tree))
