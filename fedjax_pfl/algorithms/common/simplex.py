"""Points of a simplex for clients, by the principal components of what they send."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import mixing

NEAREST = 1e-4  # distances of two points in the energy are at least this
LEVELS = 1000  # of projection that are tried, in (0, 1]


def projected(rows: jax.Array, count: int) -> jax.Array:
    """Return points of the simplex, [N, count], for the rows [N, P] of clients.

    Of the projections of the principal components at levels z, it is the one with the least Riesz
    energy, the sum of |b_i - b_j|^-2 over pairs.
    """
    wide = rows.astype(jnp.promote_types(rows.dtype, "float32"))
    u, sizes, axes = jnp.linalg.svd(wide - jnp.mean(wide, axis=0), full_matrices=False)
    largest = jnp.argmax(jnp.abs(axes), axis=1, keepdims=True)
    signs = jnp.sign(jnp.take_along_axis(axes, largest, axis=1)[:, 0])
    components = (u * sizes * signs)[:, :count]
    missing = count - components.shape[1]
    components = jnp.pad(components, ((0, 0), (0, missing)))

    pairs = jnp.triu(jnp.ones((len(rows), len(rows)), bool), 1)

    def energy(level):
        points = on_simplex(components, level)
        squares = jnp.sum(jnp.square(points[:, None] - points), axis=2)
        nearest = squares <= NEAREST**2
        others = jnp.where(pairs & ~nearest, 1 / jnp.maximum(squares, NEAREST**2), 0)
        return jnp.sum(pairs & nearest), jnp.sum(others)

    levels = jnp.linspace(1e-4, 1, LEVELS, dtype=wide.dtype)
    # Nearest pairs have so much energy that in single precision no other would count beside them.
    nearest, others = lax.map(energy, levels)
    energies = (nearest - jnp.min(nearest)) / NEAREST**2 + others
    best = levels[jnp.argmin(energies)]
    return on_simplex(components, best).astype(rows.dtype)


def on_simplex(points: jax.Array, level: jax.Array) -> jax.Array:
    """Project rows [N, E] on the simplex with sum `level`; return them divided by their sums."""
    ordered = -jnp.sort(-points, axis=1)
    excess = jnp.cumsum(ordered, axis=1) - level
    support = jnp.sum(ordered * jnp.arange(1, ordered.shape[1] + 1) > excess, axis=1, keepdims=True)
    shift = jnp.take_along_axis(excess, support - 1, axis=1) / support
    return mixing.normalize(jnp.maximum(points - shift, 0))
