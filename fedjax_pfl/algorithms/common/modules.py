"""Layers that algorithms put beside a network's own."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms.common.hypernetwork import linear


def initial_dense_norm(key: core.Key, inputs: int, outputs: int, dtype: jnp.dtype) -> dict:
    """Return initial parameters of a dense layer and a layer norm, drawn as in PyTorch."""
    kernel, bias = (jax.random.fold_in(key, k) for k in range(2))
    return {
        "kernel": linear(kernel, (inputs, outputs), inputs, dtype),
        "bias": linear(bias, (outputs,), inputs, dtype),
        "scale": jnp.ones((outputs,), dtype),
        "offset": jnp.zeros((outputs,), dtype),
    }


def only(params: dict, *modules: str) -> core.Tree:
    """Return which leaves are in the modules, for the option `trainable` of `ctx.train`."""
    return {k: jax.tree.map(lambda _, on=k in modules: on, part) for k, part in params.items()}


def all_but(params: dict, *modules: str) -> core.Tree:
    """Return which leaves are outside of the modules, for the option `trainable`."""
    return only(params, *(name for name in params if name not in modules))


def dense(params: dict, x: jax.Array) -> jax.Array:
    """Return a linear layer's outputs, [B, outputs]."""
    return products.matmul(x, params["kernel"]) + params["bias"]


def layer_norm(params: dict, x: jax.Array) -> jax.Array:
    """Normalize the rows of [B, d] to mean 0 and variance 1, then scale and offset them."""
    wide = x.astype(jnp.promote_types(x.dtype, "float32"))
    centred = wide - jnp.mean(wide, axis=1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=1, keepdims=True)
    normed = (centred * lax.rsqrt(variance + 1e-5)).astype(x.dtype)
    return normed * params["scale"] + params["offset"]
