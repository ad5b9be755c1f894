"""Random keys: folded from (seed, purpose, round, permanent client id), so nothing else matters.

Every draw names its type. JAX's default type, and with it the numbers, depend on whether the
process has 64-bit types.
"""

import zlib

import jax
import jax.numpy as jnp


def derive(key: jax.Array, purpose: str) -> jax.Array:
    """The key of one purpose, such as "init", "cohort" or "train"; purposes are independent."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()) & 0x7FFFFFFF)


def of_round(key: jax.Array, purpose: str, t: jax.Array) -> jax.Array:
    """The key of one purpose in round `t`."""
    return jax.random.fold_in(derive(key, purpose), t)


def lots(key: jax.Array, ids: jax.Array) -> jax.Array:
    """float32 [A] in [0, 1): a random number of each client, which its permanent id decides."""

    def lot(client):
        return jax.random.uniform(jax.random.fold_in(key, client), dtype=jnp.float32)

    return jax.vmap(lot)(ids)
