"""Which other clients' models each client downloads: the most promising, or a random one."""

import jax
import jax.numpy as jnp
from jax import lax


def epsilon_greedy(key, ids, everyone, affinity, candidates, count, chance):
    """(rows of the models [A, count] that clients download, whether there was one).

    One after the other, each is with that chance a random one of those that are left, else the one
    with the largest affinity. The same clients make the same picks wherever their rows are.

    Args:
      ids, everyone: permanent ids of the receivers [A], and of all clients [N].
      affinity: [A, N].
      candidates: bool [A, N], whose models there are.
    """
    luck, priority, ties = draws(key, ids, everyone, count)
    return pick(affinity, candidates, luck < chance, priority, ties)


def draws(key, ids, everyone, count):
    """Random numbers of clients `ids` [A]: (for each of their downloads [A, count] in 0..1, twice
    one for each of `everyone` [A, N] in 0..2^31). They depend on permanent ids alone.
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
    """(models [A, D] picked one after the other, bool [A, D] whether one was left), epsilon-greedy.

    Args:
      affinity: [A, N].
      candidates: bool [A, N].
      explores: bool [A, D], whether a pick is a random one: of those left the first by priority.
        Else it has the largest affinity, and is the first by ties.
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
