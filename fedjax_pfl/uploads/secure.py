"""The numbers of secure aggregation: fixed point, and sums that wrap.

Masks cancel in the sum, so nothing of them is computed. What remains of the protocol is its
arithmetic: an update is clipped to [-R, R], rounded at random to L levels, and summed modulo 2^b.
"""

import math

import jax
import jax.numpy as jnp

from fedjax_pfl.utils.errors import InputError, require, require_whole
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Key, Stack, Tree


@struct
class FixedPoint:
    """Fixed-point numbers of `bits` bits.

    Attributes:
      bits: b, of the modulus 2^b; at most 32.
      span: R, the largest magnitude of a number.
      levels: L, steps between -R and R.
    """

    bits: int = static(default=32)
    span: float = static(default=8.0)
    levels: int = static(default=2**22)

    def validate(self, members: int) -> None:
        """Raise `InputError` where a sum of so many members may wrap."""
        require_whole("secure_bits", self.bits, 1)
        require(self.bits <= 32, "secure_bits", self.bits, "at most 32")
        if members * self.levels >= 2**self.bits:
            needed, most = (members * self.levels).bit_length(), (2**32 - 1) // self.levels
            advice = f"{needed} bits" if needed <= 32 else f"at most {most} members in a round"
            raise InputError(
                f"Sums of {members} members with {self.levels:,} levels wrap at {self.bits} bits: "
                f"take {advice}."
            )

    def check_noise(self, clip: float, noise: float, fewest: int, members: int) -> None:
        """Raise `InputError` where cutting to the span or rounding may remove distributed noise.

        Args:
          clip: largest norm of an update.
          noise: noise multiplier of the sum of a round.
          fewest, members: the fewest and the most members that share the noise of a round.
        """
        reach = clip * (1 + 6 * noise / math.sqrt(fewest))
        step, share = 2 * self.span / self.levels, clip * noise / math.sqrt(members)
        if noise > 0 and self.span < reach:
            raise InputError(
                f"span of secure aggregation must be at least {reach:g} (dp_clip and six standard "
                f"deviations of a member's noise), got {self.span:g}: it would cut off the noise."
            )
        if noise > 0 and step > share:
            raise InputError(
                f"levels of secure aggregation must be at least {math.ceil(2 * self.span / share)}"
                f", for steps below the deviation {share:g} of a member's noise, got {self.levels}."
            )

    def encoded(self, update: Tree, key: Key) -> Tree:
        """Return one member's update as uint32 in 0..L."""
        leaves, tree = jax.tree.flatten(update)
        keys = jax.random.split(key, max(len(leaves), 1))
        return tree.unflatten([self._encoded(x, k) for x, k in zip(leaves, keys, strict=False)])

    def _encoded(self, x: jax.Array, key: Key) -> jax.Array:
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        scaled = (jnp.clip(x, -self.span, self.span) + self.span) * (self.levels / (2 * self.span))
        # Floor and fraction are separate: added to a random number, they would cost its last bits.
        low = jnp.floor(scaled)
        up = jax.random.uniform(key, x.shape, x.dtype) < scaled - low
        return low.astype(jnp.uint32) + up

    def sum(self, encoded: Stack) -> Tree:
        """Return the sum [...] of encoded updates [M, ...] modulo 2^b."""
        mask = jnp.uint32(2**self.bits - 1)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=jnp.uint32) & mask, encoded)

    def rounded(self, update: Tree, key: Key) -> Tree:
        """Return one member's update as the server would decode it of a sum that does not wrap."""
        step = 2 * self.span / self.levels

        def of(x, like):
            wide = jnp.promote_types(like.dtype, jnp.float32)
            return (x.astype(wide) * step - self.span).astype(like.dtype)

        return jax.tree.map(of, self.encoded(update, key), update)
