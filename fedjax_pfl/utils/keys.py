"""Random keys, derived only from (seed, purpose, round, permanent client id).

Every draw specifies its type: JAX's default type, and with it the numbers, depend on whether
64-bit types are enabled.
"""

import zlib

import jax
import jax.numpy as jnp


def derive(key: jax.Array, purpose: str) -> jax.Array:
    """Return the key of a purpose, such as "init", "cohort" or "train"."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()) & 0x7FFFFFFF)


def of_round(key: jax.Array, purpose: str, t: jax.Array) -> jax.Array:
    """Return the key of a purpose in round `t`."""
    return jax.random.fold_in(derive(key, purpose), t)


def lots(key: jax.Array, ids: jax.Array) -> jax.Array:
    """Draw a random number for each client from its permanent id, float32 [A] in [0, 1)."""

    def lot(client):
        return jax.random.uniform(jax.random.fold_in(key, client), dtype=jnp.float32)

    return jax.vmap(lot)(ids)
