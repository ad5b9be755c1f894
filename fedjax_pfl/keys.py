"""Random keys: folded from (seed, purpose, round, permanent client id), so nothing else matters."""

import zlib

import jax


def derive(key: jax.Array, purpose: str) -> jax.Array:
    """The key of one purpose, such as "init", "cohort" or "train"; purposes are independent."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()) & 0x7FFFFFFF)


def of_round(key: jax.Array, purpose: str, t: jax.Array) -> jax.Array:
    """The key of one purpose in round `t`."""
    return jax.random.fold_in(derive(key, purpose), t)
