"""Bipartition of clusters by the cosines of their members' updates."""

import jax.numpy as jnp
from jax import lax

from fedjax_pfl.aggregation import products

LINKAGES = {"complete": jnp.maximum, "single": jnp.minimum}


def second_halves(cosines, ids, members, linkage):
    """Return the clients that leave their cluster, bool [M]: the half without its lowest id.

    Agglomerative clustering inside every cluster on distances -cos, until two groups are left.
    Ties go to the pair of groups with the lowest ids.

    Args:
      cosines: [M, M].
      ids: int32 [M].
      members: bool [K, M], those of the clusters to be cut; no other client leaves.
      linkage: "complete" or "single": the distance of two groups is the largest or the smallest
        of their members'.
    """
    order = jnp.argsort(ids)
    inside = members[:, order]
    count, join = len(order), LINKAGES[linkage]
    pairs = _together(inside) & ~jnp.eye(count, dtype=bool)
    # A group has the row and column of its lowest member; those of others are infinite.
    distances = jnp.where(pairs, -(cosines + cosines.T)[order][:, order] / 2, jnp.inf)
    groups = jnp.sum(inside, axis=1, dtype=jnp.int32)

    def unfinished(state):
        return jnp.any(state[0] > 2)

    def merge(state):
        groups, leader, distances = state
        still = jnp.any(inside & (groups > 2)[:, None], axis=0)
        nearest = jnp.argmin(jnp.where(still[:, None], distances, jnp.inf))
        a, b = nearest // count, nearest % count  # a < b, as the matrix is symmetric to the bit
        joined = join(distances[a], distances[b]).at[a].set(jnp.inf)
        distances = distances.at[a].set(joined).at[:, a].set(joined)
        distances = distances.at[b].set(jnp.inf).at[:, b].set(jnp.inf)
        return groups - inside[:, a], jnp.where(leader == b, a, leader), distances

    leader = jnp.arange(count)
    _, leader, _ = lax.while_loop(unfinished, merge, (groups, leader, distances))
    lowest = jnp.argmax(inside, axis=1)  # leads the half that stays
    leaves = jnp.any(inside & (leader != lowest[:, None]), axis=0)
    return leaves[jnp.argsort(order)]


def largest_between(cosines, members, second):
    """Return the largest cosine between the halves of each cluster, [K]; -1 if one is empty."""
    across = _together(members) & ~second[:, None] & second
    largest = jnp.max(jnp.where(across, cosines, -1), axis=1)
    return jnp.max(jnp.where(members, largest, -1), axis=1)


def _together(members):
    """Return the pairs in one cluster, bool [M, M]."""
    inside = members.astype(jnp.float32)
    return products.matmul(inside.T, inside) > 0
