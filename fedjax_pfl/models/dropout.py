"""Dropout with the same mask with and without 64-bit types."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Dropout(nn.Module):
    """Zeroes each number with probability `rate`, and divides the others by 1 - rate.

    `flax.linen.Dropout` does the same, but draws other masks if 64-bit types are enabled.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = jax.random.bernoulli(self.make_rng("dropout"), jnp.float32(keep), x.shape)
        return jnp.where(mask, x / keep, 0)
