"""Pairwise squared distances, cosines and Gram matrices of stacked models.

All take pytrees whose leaves lead with the client axis ([A, ...] and [B, ...]) and return [A, B].
Leaves are contracted one by one at the highest matrix-product precision the backend has (tf32 or
bfloat16 products would drown the small distances that the weights of personalized methods live
on), and their results summed.
"""

from typing import Any

import jax
import jax.numpy as jnp

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
    """|a_i - b_j|^2, [A, B], safe for models that differ by a small part of their norm.

    Expanding the square on raw weights cancels: their norms are 1e2 to 1e3 where the distances
    wanted are 1e-4 to 1e-1. Both stacks are therefore shifted by the mean of `b` first, which
    changes no distance. Where both have the same length, row i of one usually stands for the same
    client as row i of the other and is by far its nearest: the diagonal is summed directly.
    """
    centre = jax.tree.map(lambda y: jnp.mean(y, axis=0), b)
    a = jax.tree.map(jnp.subtract, a, centre)
    b = jax.tree.map(jnp.subtract, b, centre)
    norms_a, norms_b = squared_norms(a), squared_norms(b)
    distances = jnp.maximum(norms_a[:, None] + norms_b[None, :] - 2 * gram(a, b), 0)
    if len(norms_a) == len(norms_b):
        own = jnp.eye(len(norms_a), dtype=bool)
        paired = squared_norms(jax.tree.map(jnp.subtract, a, b))
        distances = jnp.where(own, paired[:, None], distances)
    return distances


def cosines(a: Tree, b: Tree) -> jax.Array:
    """cos(a_i, b_j), [A, B]; 0 where either vector is zero.

    A cosine is not translation invariant: pass updates (differences of models), never weights
    shifted by a common centre.
    """
    scale = jnp.sqrt(squared_norms(a))[:, None] * jnp.sqrt(squared_norms(b))[None, :]
    safe = jnp.where(scale > 0, scale, 1)
    return jnp.where(scale > 0, gram(a, b) / safe, 0)


def _sum_leaves(tree: Tree) -> jax.Array:
    return sum(jax.tree.leaves(tree))
