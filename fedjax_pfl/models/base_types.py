"""Frozen leaves that are held in fewer bits, and converted where they are used."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from fedjax_pfl.utils.typing import Tree

BASE_DTYPES = ("bfloat16", "int8")
LARGEST = 127
RESTORED = "restored"  # name of converted leaves


class Quantized(NamedTuple):
    """An array of 8-bit integers with a scale for each column of its last axis.

    Attributes:
      integers: int8, in the array's shape.
      scale: [columns], of the array's type.
    """

    integers: jax.Array
    scale: jax.Array


def is_quantized(leaf: Any) -> bool:
    """Return whether a part of a tree is `Quantized`."""
    return isinstance(leaf, Quantized)


def held(leaf: jax.Array | np.ndarray, base_dtype: str) -> Any:
    """Return a floating leaf in the type in which the base is held; others are unchanged.

    Biases, scales and other leaves of one axis stay as they are with int8.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    if base_dtype == "bfloat16":
        return jnp.asarray(leaf, jnp.bfloat16)
    if leaf.ndim < 2:
        return leaf
    leaf = jnp.asarray(leaf)
    most = jnp.max(jnp.abs(leaf), axis=tuple(range(leaf.ndim - 1)))
    scale = jnp.where(most > 0, most / LARGEST, 1)
    return Quantized(jnp.round(leaf / scale).astype(jnp.int8), scale)


def restored(tree: Tree, dtype: Any) -> Tree:
    """Return a tree with all floating leaves and `Quantized` ones in a type."""

    def one(leaf):
        if is_quantized(leaf):
            return named(leaf.integers.astype(dtype) * leaf.scale.astype(dtype))
        return named(leaf.astype(dtype)) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree, is_leaf=is_quantized)


def named(leaf: jax.Array) -> jax.Array:
    return checkpoint_name(leaf, RESTORED)


def converted_twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of (base, model, inputs) that never keeps the converted base.

    Its backward pass converts the base again. A compiler can't convert it ahead of a loop either.
    """

    def late(base, model, inputs):
        base, inputs = jax.lax.optimization_barrier((base, inputs))
        return fn(base, model, inputs)

    policy = jax.checkpoint_policies.save_anything_except_these_names(RESTORED)
    return jax.checkpoint(late, policy=policy)


def shapes(tree: Tree) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays that a tree stands for."""
    leaves = jax.tree.leaves(tree, is_leaf=is_quantized)
    return [(leaf.integers if is_quantized(leaf) else leaf).shape for leaf in leaves]
