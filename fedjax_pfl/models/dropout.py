"""Dropout whose mask does not depend on the process's default type."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Dropout(nn.Module):
    """Zeroes each number with probability `rate`, and divides the others by 1 - rate.

    `flax.linen.Dropout` does the same, but draws other masks where JAX has 64-bit types.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or self.rate == 0:
            return x
        kept = 1 - self.rate
        mask = jax.random.bernoulli(self.make_rng("dropout"), jnp.float32(kept), x.shape)
        return jnp.where(mask, x / kept, 0)
