"""Low-rank approximations of a model's change, and their sizes."""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.aggregation import products


def low_rank(model: core.Tree, onto: core.Tree, energy) -> tuple[core.Tree, jax.Array]:
    """Return (the model after a change of low rank, how many numbers the change takes).

    The change of each leaf from `onto` is a matrix with the leaf's last axis as columns, of which
    `leading` keeps a part. Its factors with k singular values take k (P + Q + 1) numbers, and are
    sent if that is less than the P Q of the matrix. Leaves that are vectors change entirely.

    Args:
      model, onto: leaves of the same shapes.
      energy: share of the squares of the singular values.
    """
    numbers, leaves = jnp.int32(0), []
    for new, old in zip(jax.tree.leaves(model), jax.tree.leaves(onto), strict=True):
        columns = new.shape[-1] if new.ndim else 1
        rows = new.size // columns
        if min(rows, columns) == 1:
            leaves.append(new)
            numbers += new.size
            continue
        change, rank = leading((new - old).reshape(rows, columns), energy)
        leaves.append(old + change.reshape(new.shape))
        numbers += jnp.minimum(rank * (rows + columns + 1), new.size)
    return jax.tree.structure(model).unflatten(leaves), numbers


@jax.custom_batching.sequential_vmap  # one decomposition at a time
def leading(matrix: jax.Array, energy) -> tuple[jax.Array, jax.Array]:
    """Return (the part of a matrix with its first k singular values, k).

    k is the smallest number whose squares reach this share of the sum of all squares. A matrix that
    is not finite stays as it is.
    """
    rows, columns = matrix.shape
    tall = matrix if rows >= columns else matrix.T
    tall = tall.astype(jnp.promote_types(matrix.dtype, jnp.float32))
    finite, largest = jnp.all(jnp.isfinite(tall)), jnp.max(jnp.abs(tall))
    scaled = jnp.where(finite & (largest > 0), tall / jnp.where(largest > 0, largest, 1), 0)
    squares, vectors = jnp.linalg.eigh(products.matmul(scaled.T, scaled))
    squares, vectors = jnp.maximum(squares[::-1], 0), vectors[:, ::-1]
    before = jnp.cumsum(squares) - squares
    kept = (before < energy * jnp.sum(squares)) | (energy >= 1)
    vectors = jnp.where(kept, vectors, 0)
    part = products.matmul(products.matmul(scaled, vectors), vectors.T) * largest
    part = part if rows >= columns else part.T
    rank = jnp.where(finite, jnp.sum(kept, dtype=jnp.int32), min(rows, columns))
    return jnp.where(finite, part.astype(matrix.dtype), matrix), rank
