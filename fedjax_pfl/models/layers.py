"""Building blocks of the networks: layers that stay fast under a client axis."""

import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.errors import unknown_name

INITIALIZERS = ("torch", "flax")


def initializers(name: str, fan_in: int):
    """(kernel initializer, bias initializer) of a layer.

    "torch": both uniform in +-1/sqrt(fan_in), PyTorch's default, under which the papers' networks
    were trained. "flax": LeCun normal kernels and zero biases.
    """
    if name == "flax":
        return nn.initializers.lecun_normal(), nn.initializers.zeros_init()
    if name != "torch":
        raise unknown_name("initializer", name, INITIALIZERS)
    bound = fan_in**-0.5

    def uniform(key, shape, dtype=jnp.float32):
        # Drawn flat: the same numbers, and several times less to compile.
        flat = jax.random.uniform(key, (math.prod(shape),), dtype, -bound, bound)
        return flat.reshape(shape)

    return uniform, uniform


def patches(x: jax.Array, kernel: Sequence[int]) -> jax.Array:
    """Sliding windows: [B, H, W, C] gives [B, H', W', kh * kw * C] (valid, stride 1).

    Columns first, then rows: kh + kw slices instead of kh * kw.
    """
    kh, kw = kernel
    height, width = x.shape[1] - kh + 1, x.shape[2] - kw + 1
    x = jnp.concatenate([x[:, :, j : j + width] for j in range(kw)], axis=-1)
    return jnp.concatenate([x[:, i : i + height] for i in range(kh)], axis=-1)


class Dense(nn.Module):
    """A linear layer, [B, d] to [B, features]."""

    features: int
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x):
        kernel_init, bias_init = initializers(self.initializer, x.shape[-1])
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.features))
        bias = self.param("bias", bias_init, (self.features,))
        return x @ kernel.astype(x.dtype) + bias.astype(x.dtype)


class Conv(nn.Module):
    """A stride-1 convolution as patches times weights, [B, H, W, C] to [B, H', W', features].

    Under a client axis every client has its own kernel. XLA makes that a grouped convolution, many
    times slower than the batched matrix product this is.
    """

    features: int
    kernel_size: tuple[int, int]
    padding: int = 0
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x):
        shape = (*self.kernel_size, x.shape[-1], self.features)
        fan_in = shape[0] * shape[1] * shape[2]
        kernel_init, bias_init = initializers(self.initializer, fan_in)
        kernel = self.param("kernel", kernel_init, shape)
        bias = self.param("bias", bias_init, (self.features,))
        if self.padding:
            around = (self.padding, self.padding)
            x = jnp.pad(x, ((0, 0), around, around, (0, 0)))
        x = patches(x, self.kernel_size)
        kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
        return x @ kernel.reshape(fan_in, self.features) + bias


def max_pool(x: jax.Array, size: int = 2) -> jax.Array:
    """Maximum over non-overlapping windows; rows and columns left over are cut off."""
    batch, height, width, channels = x.shape
    height, width = height // size, width // size
    x = x[:, : height * size, : width * size]
    return x.reshape(batch, height, size, width, size, channels).max(axis=(2, 4))
