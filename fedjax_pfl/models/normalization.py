"""Batch normalization whose statistics are client state, with PyTorch's conventions."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.models.layers import add_and_pool, add_channels, channel_sum, scale_channels
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.conversions import accepted


def masked_moments(
    x: jax.Array, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return mean and biased variance per channel, and the number of values.

    Args:
      x: [B, ..., C].
      valid: bool [B], the samples that count; all of them by default.

    Returns:
      (mean [C], variance [C], count []); zeros if no sample is valid.
    """
    each = x.size // (x.shape[0] * x.shape[-1])  # values of a sample in a channel
    counted = jnp.ones(x.shape[0], x.dtype) if valid is None else valid.astype(x.dtype)
    count = jnp.sum(counted) * each
    weights = jnp.repeat(counted / jnp.maximum(count, 1), each)
    x = _valid_only(x, valid)
    mean = channel_sum(x, weights)
    variance = channel_sum(jnp.square(add_channels(x, -mean)), weights)
    return mean, variance, count


def _valid_only(x: jax.Array, valid: jax.Array | None) -> jax.Array:
    """Replace invalid samples by zeros, so that not even NaN values enter a sum."""
    if valid is None:
        return x
    return jnp.where(trees.expand_to(x, valid), x, 0)


class BatchNorm(nn.Module):
    """Batch normalization over the valid samples of a batch, [B, ..., C].

    In training values are normalized with the batch's mean and biased variance, and the running
    mean and the running *unbiased* variance move towards the batch's by `momentum`. In evaluation
    they are normalized with the running statistics. A batch without a valid sample changes nothing;
    with a single value per channel there is no unbiased variance, and only the mean changes.

    Parameters are "scale" and "bias", statistics "mean" and "var" of the collection "batch_stats",
    all [C]. The leaf plan's batch-norm policy determines which of them a server averages.
    """

    momentum: float = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x, train: bool = False, valid=None, pool=None):
        """Normalize and, if given, pool; see `add_and_pool`."""
        shape = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones_init(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), shape)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape)
        # Half-precision sums would lose the statistics.
        exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        if train:
            exact = _valid_only(exact, valid)
            mean, variance, count = masked_moments(exact, valid)
            if self.is_mutable_collection("batch_stats") and not self.is_initializing():
                unbiased = variance * (count / jnp.maximum(count - 1, 1))
                self._move(running_mean, mean, count > 0)
                self._move(running_var, unbiased, count > 1)
        else:
            mean = running_mean.value.astype(exact.dtype)
            variance = running_var.value.astype(exact.dtype)
        factor = scale.astype(exact.dtype) * jax.lax.rsqrt(variance + self.epsilon)
        normal = scale_channels(add_channels(exact, -mean), factor)
        return add_and_pool(normal, bias.astype(exact.dtype), pool).astype(x.dtype)

    def _move(self, running, value, on):
        old = running.value
        new = (1 - self.momentum) * old + self.momentum * value.astype(old.dtype)
        running.value = jnp.where(on, new, old)


class GroupNorm(nn.Module):
    """Normalization of each sample over its pixels and the channels of a group, [B, ..., C].

    It keeps no statistics. Parameters are "scale" and "bias", [C].
    """

    groups: int
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x):
        channels = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones_init(), (channels,))
        bias = self.param("bias", nn.initializers.zeros_init(), (channels,))
        exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        parts = exact.reshape(x.shape[0], -1, self.groups, channels // self.groups)
        normal = _standardized(parts, (1, 3), self.epsilon).reshape(exact.shape)
        normal = scale_channels(normal, scale.astype(exact.dtype))
        return add_channels(normal, bias.astype(exact.dtype)).astype(x.dtype)


class LayerNorm(nn.Module):
    """Normalization of every position over its channels, [..., C]; "scale" and "bias", [C]."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x):
        shape = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones_init(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), shape)
        exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        normal = _standardized(exact, -1, self.epsilon)
        normal = scale_channels(normal, scale.astype(exact.dtype))
        return add_channels(normal, bias.astype(exact.dtype)).astype(x.dtype)


def _standardized(x: jax.Array, axis: int | tuple[int, ...], epsilon: float) -> jax.Array:
    """Standardize to mean 0 and variance 1 (up to epsilon) along axes."""
    away = x - jnp.mean(x, axis=axis, keepdims=True)
    variance = jnp.mean(jnp.square(away), axis=axis, keepdims=True)
    return away * jax.lax.rsqrt(variance + epsilon)


def masked_in_linen(valid: jax.Array | None) -> AbstractContextManager[Any]:
    """Context in which Flax's `nn.BatchNorm` layers take moments over the valid samples.

    Layers with a mask of their own, another first axis than the samples' or an `axis_name`, and
    those within lifted transformations, such as `nn.remat`, are left as they are.

    Args:
      valid: bool [B]; None for all. If none is valid all count, as the mean of nothing is NaN.
    """
    if valid is None:
        return nullcontext()
    counted, roots = valid | ~jnp.any(valid), []

    def masked(call, args, kwargs, context):
        module, x = context.module, args[0] if args else kwargs.get("x")
        root = getattr(module.scope, "root", None)
        roots.append(root)  # another one in `nn.jit`, whose cache would keep the mask
        norm = isinstance(module, nn.BatchNorm) and context.method_name == "__call__"
        free = norm and module.axis_name is None and kwargs.get("mask") is None
        by_sample = free and len(x) == len(valid) and 0 not in np.atleast_1d(module.axis) % x.ndim
        if by_sample and root is roots[0]:
            mask = trees.expand_to(x, counted)
            kwargs = {**kwargs, **accepted(context.orig_method, mask=mask)}
        return call(*args, **kwargs)

    return nn.intercept_methods(masked)
