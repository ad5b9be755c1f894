"""Random keys, derived only from (seed, purpose, round, permanent client id).

Every draw specifies its type: JAX's default type, and with it the numbers, depend on whether
64-bit types are enabled.
"""

import inspect
import zlib
from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.utils.typing import Tree


def derive(key: jax.Array, purpose: str) -> jax.Array:
    """Return the key of a purpose, such as "init", "cohort" or "train"."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()) & 0x7FFFFFFF)


def of_round(key: jax.Array, purpose: str, t: jax.Array) -> jax.Array:
    """Return the key of a purpose in round `t`."""
    return fold_all(key, zlib.crc32(purpose.encode()) & 0x7FFFFFFF, t)


def fold_all(key: jax.Array, *numbers: Any) -> jax.Array:
    """Return the key with several numbers folded in, one after the other.

    For CPUs they are folded in by a loop: compiling the generator takes a quarter of a second for
    each place where it stands.
    """
    words = jnp.stack([jnp.asarray(number).astype(jnp.uint32) for number in numbers])

    def looped(key, words):
        return jax.lax.fori_loop(0, len(numbers), lambda i, k: jax.random.fold_in(k, words[i]), key)

    def chained(key, words):
        return reduce(jax.random.fold_in, words, key)

    return jax.lax.platform_dependent(key, words, cpu=looped, default=chained)


def of_mechanism(key: jax.Array, *numbers: Any) -> jax.Array:
    """Return the key of noise with these parameters, which draw noise of their own.

    The difference of two releases with the same draws would have less noise, or none.
    """
    for number in numbers:
        bits = jax.lax.bitcast_convert_type(jnp.asarray(number, jnp.float32), jnp.uint32)
        key = jax.random.fold_in(key, bits)
    return key


def keyword(function: Callable[..., Any], key: jax.Array | None, purpose: int) -> dict[str, Any]:
    """Return the argument `key` of a function of local steps; {} if it has no such parameter.

    A parameter `key` with a default, which a `functools.partial` may have given, is left as it is.

    Args:
      key: the key of the step.
      purpose: a number that is folded into the key, another one for each kind of function.

    Raises:
      TypeError: the function takes a key, but none was passed.
    """
    parameter = inspect.signature(function).parameters.get("key")
    if parameter is None or parameter.default is not inspect.Parameter.empty:
        return {}
    if key is None:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise TypeError(
            f"{name} takes a key, and there is none: pass the step's rng to federation.penalty, "
            "and the results of step.loss_and_gradient to step.update."
        )
    return {"key": jax.random.fold_in(key, purpose)}


def normal_like(key: jax.Array, tree: Tree) -> Tree:
    """Draw independent standard normal numbers in the shapes and types of a tree's leaves."""
    leaves, structure = jax.tree.flatten(tree)
    each = jax.random.split(key, len(leaves))
    drawn = [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(each, leaves, strict=True)]
    return structure.unflatten(drawn)


def lots(key: jax.Array, ids: jax.Array) -> jax.Array:
    """Draw a random number for each client from its permanent id, float32 [A] in [0, 1)."""

    def lot(client):
        return jax.random.uniform(jax.random.fold_in(key, client), dtype=jnp.float32)

    return jax.vmap(lot)(ids)
