"""Epsilon-greedy choice of the models that each client downloads."""

import jax
import jax.numpy as jnp
from jax import lax


def epsilon_greedy(key, ids, everyone, affinity, candidates, count, chance):
    """Return (rows of the models that clients download, whether there was one), [A, count].

    Each download in turn is a random remaining candidate with the probability of exploration, and
    otherwise the one of largest affinity. Choices do not depend on the order of rows.

    Args:
      ids, everyone: permanent ids of the receivers [A], and of all clients [N].
      affinity: [A, N].
      candidates: bool [A, N], the clients whose models exist.
    """
    luck, priority, ties = draws(key, ids, everyone, count)
    return pick(affinity, candidates, luck < chance, priority, ties)


def draws(key, ids, everyone, count):
    """Return random numbers that depend only on permanent ids.

    They are (one per download, [A, count] in 0..1; two per pair of clients, [A, N] in 0..2^31).
    """
    first, second = (jax.random.fold_in(key, k) for k in range(2))

    def of_downloads(i):
        return jax.random.uniform(jax.random.fold_in(first, i), (count,), jnp.float32)

    def of_pair(i, j):
        pair = jax.random.fold_in(jax.random.fold_in(second, i), j)
        return jax.random.bits(pair, (2,), jnp.uint32) >> 1

    pairs = jax.vmap(lambda i: jax.vmap(lambda j: of_pair(i, j))(everyone))(ids)
    return jax.vmap(of_downloads)(ids), pairs[..., 0], pairs[..., 1]


def pick(affinity, candidates, explores, priority, ties):
    """Return (choices [A, D] made one after the other, bool [A, D] whether a candidate was left).

    Args:
      affinity: [A, N].
      candidates: bool [A, N].
      explores: bool [A, D], whether a choice is random: the first remaining one by priority.
        Otherwise it has the largest affinity, the first by ties.
      priority, ties: uint32 [A, N], below 2^31.
    """
    last = jnp.uint32(2**31)

    def one(left, explore):
        best = jnp.max(jnp.where(left, affinity, -jnp.inf), axis=1, keepdims=True)
        greedy = jnp.argmin(jnp.where(left & (affinity == best), ties, last), axis=1)
        random = jnp.argmin(jnp.where(left, priority, last), axis=1)
        picked = jnp.where(explore, random, greedy).astype(jnp.int32)
        found = jnp.any(left, axis=1)
        return left & (jnp.arange(left.shape[1]) != picked[:, None]), (picked, found)

    _, (picks, found) = lax.scan(one, candidates, explores.T)
    return picks.T, found.T
