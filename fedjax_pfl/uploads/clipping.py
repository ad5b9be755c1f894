"""Clipping and noise of whole updates: client-level differential privacy."""

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation import similarity
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.keys import normal_like
from fedjax_pfl.utils.typing import Mask, PerMember, Scalar, Stack


def clip_rows(updates: Stack, bound: Scalar | float) -> tuple[Stack, PerMember]:
    """Scale rows down to a norm of at most `bound` over all leaves together.

    Rows that are not finite, or whose squares overflow, become zero. Leaving their clients out of
    the sum would reveal something about them.

    Returns:
      (the clipped stack [M, ...], the norms [M] before clipping, infinite where a row became zero).
    """
    count = len(jax.tree.leaves(updates)[0])
    norms = jnp.sqrt(similarity.squared_norms(updates))
    fine = jnp.isfinite(norms) & trees.rows_finite(updates, count)
    factor = jnp.minimum(1, bound / jnp.where(norms > 0, norms, 1))
    factor = jnp.where(norms > 0, factor, 1)

    def scaled(leaf):
        one = trees.expand_to(leaf, jnp.where(fine, factor, 0).astype(leaf.dtype))
        return jnp.where(trees.expand_to(leaf, fine), leaf * one, 0)

    return jax.tree.map(scaled, updates), jnp.where(fine, norms, jnp.inf)


def add_noise(keys: jax.Array, updates: Stack, deviation: Scalar | float) -> Stack:
    """Add independent Gaussian noise to every coordinate of every row.

    Args:
      keys: [M], one for each row, so that a client's noise does not depend on the others.
      deviation: of the noise, in the units of the updates.
    """

    def noisy(key, row):
        drawn = normal_like(key, row)
        return jax.tree.map(lambda x, z: x + jnp.asarray(deviation, x.dtype) * z, row, drawn)

    return jax.vmap(noisy)(keys, updates)


def next_bound(
    bound: Scalar,
    norms: PerMember,
    mask: Mask,
    noise: Scalar,
    expected: Scalar | float,
    quantile: float = 0.5,
    rate: float = 0.2,
) -> Scalar:
    """Return the next round's clipping bound, C exp(-rate (b - quantile)) (Andrew et al., 2021).

    b is the share of members whose norm is at most C, with noise. What is released is the sum of
    b_j - 1/2 over members, which one client changes by at most 1/2. A client that is absent, or
    whose update is zero or not finite, contributes 0. Some implementations count the members that
    were clipped instead, which drives the bound away from the quantile.

    Args:
      bound: C.
      norms: [M], before clipping.
      mask: the members that take part.
      noise: the noise of this sum, already drawn.
      expected: number of members, known without looking at the clients.
      quantile: the share of updates that the bound should leave as they are.
      rate: of the geometric update.
    """
    counts = mask & (norms > 0) & jnp.isfinite(norms)
    total = jnp.sum(jnp.where(counts, jnp.where(norms <= bound, 0.5, -0.5), 0)) + noise
    share = total / expected + 0.5
    return bound * jnp.exp(-rate * (share - quantile))


def split_noise(multiplier: Scalar | float, count_deviation: Scalar | float) -> Scalar:
    """Return the updates' noise multiplier that costs `multiplier` with the noisy counts.

    (z^-2 - (2 s_b)^-2)^(-1/2), with s_b the deviation of the noise on the sum of `next_bound`, of
    sensitivity 1/2 (Andrew et al., 2021, theorem 1). 0 stays 0; infinite where z is not below
    2 s_b.
    """
    z = jnp.asarray(multiplier)
    rest = 1 / jnp.square(jnp.where(z > 0, z, 1)) - 1 / jnp.square(2 * count_deviation)
    return jnp.where(z > 0, jnp.where(rest > 0, 1 / jnp.sqrt(jnp.abs(rest)), jnp.inf), 0)
