"""Compressors of updates, with the bits that they send.

`compressor(update, key)` takes one client's update (a pytree without the client axis) and returns
what the server decodes; `bits(sizes, width)` is the size of one update in bits, for leaves of
`sizes` numbers of `width` bits, with indices, scales and seeds. Leaves are compressed one by one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Key, Tree

SEED_BITS = 64
SCALE_BITS = 32


class Compressor:
    """A compressor of single leaves; subclasses define `leaf` and `leaf_bits`."""

    def __call__(self, update: Tree, key: Key) -> Tree:
        leaves, tree = jax.tree.flatten(update)
        keys = jax.random.split(key, max(len(leaves), 1))

        def decoded(x, k):  # half precision would bias the rounding
            wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
            return self.leaf(wide, k).astype(x.dtype)

        return tree.unflatten([decoded(x, k) for x, k in zip(leaves, keys, strict=False)])

    def leaf(self, x: jax.Array, key: Key) -> jax.Array:
        """Return the decoded numbers of one leaf."""
        raise NotImplementedError

    def leaf_bits(self, size: int, width: int) -> int:
        """Return the bits that a leaf of `size` numbers of `width` bits takes."""
        raise NotImplementedError

    def bits(self, sizes: Sequence[int], width: int) -> int:
        """Return the bits of one update."""
        return sum(self.leaf_bits(size, width) for size in sizes if size)


@struct
class Qsgd(Compressor):
    """Stochastic rounding to multiples of |x| / s, s = 2^(b-1) - 1 (QSGD, Alistarh et al., 2017).

    With the differences of FedAvg's models it is FedPAQ (Reisizadeh et al., AISTATS 2020).
    E Q(x) = x, and E |Q(x) - x|^2 <= min(d / s^2, sqrt(d) / s) |x|^2.
    """

    bits_per_number: int = static(default=8)

    def __post_init__(self) -> None:
        allowed = "at least 2, one of them a sign"
        require(self.bits_per_number >= 2, "bits_per_number of qsgd", self.bits_per_number, allowed)

    def leaf(self, x, key):
        levels = 2 ** (self.bits_per_number - 1) - 1
        length = jnp.sqrt(jnp.sum(jnp.square(x)))
        scaled = jnp.abs(x) * (levels / jnp.where(length > 0, length, 1))
        rounded = jnp.floor(scaled + jax.random.uniform(key, x.shape, x.dtype))
        return jnp.sign(x) * rounded * (length / levels)

    def leaf_bits(self, size, width):
        return size * self.bits_per_number + SCALE_BITS


@struct
class Uniform(Compressor):
    """Stochastic rounding to 2^b levels between a leaf's smallest and its largest number."""

    bits_per_number: int = static(default=8)

    def leaf(self, x, key):
        levels = 2**self.bits_per_number - 1
        low, high = jnp.min(x), jnp.max(x)
        step = (high - low) / levels
        scaled = (x - low) / jnp.where(step > 0, step, 1)
        rounded = jnp.floor(scaled + jax.random.uniform(key, x.shape, x.dtype))
        return low + step * jnp.minimum(rounded, levels)

    def leaf_bits(self, size, width):
        return size * self.bits_per_number + 2 * SCALE_BITS


@struct
class TopK(Compressor):
    """The share `rate` of a leaf's numbers that are largest in magnitude, with their indices."""

    rate: float = static(default=0.1)

    def leaf(self, x, key):
        flat = x.reshape(-1)
        count = num_sent(flat.size, self.rate)
        if count == flat.size:
            return x
        _, at = jax.lax.top_k(jnp.abs(flat), count)
        return jnp.zeros_like(flat).at[at].set(flat[at]).reshape(x.shape)

    def leaf_bits(self, size, width):
        count = num_sent(size, self.rate)
        index = 0 if count == size else math.ceil(math.log2(size))
        return count * (width + index)


@struct
class RandK(Compressor):
    """A random share `rate` of a leaf's numbers, scaled by d / k; the server knows the seed."""

    rate: float = static(default=0.1)

    def leaf(self, x, key):
        flat = x.reshape(-1)
        count = num_sent(flat.size, self.rate)
        if count == flat.size:
            return x
        at = jax.random.permutation(key, flat.size)[:count]
        chosen = flat[at] * (flat.size / count)
        return jnp.zeros_like(flat).at[at].set(chosen).reshape(x.shape)

    def leaf_bits(self, size, width):
        count = num_sent(size, self.rate)
        return count * width + (0 if count == size else SEED_BITS)


@struct
class Sign(Compressor):
    """The signs times the mean magnitude, |x|_1 / d sign(x) (Karimireddy et al., ICML 2019)."""

    def leaf(self, x, key):
        return jnp.mean(jnp.abs(x)) * jnp.where(x < 0, -1.0, 1.0).astype(x.dtype)

    def leaf_bits(self, size, width):
        return size + SCALE_BITS


@struct
class Rotate(Compressor):
    """A random rotation before `bits_per_number` bits a number; 1 bit is DRIVE's sign.

    The rotation is a Hadamard transform of numbers with random signs, padded to a power of two; the
    server knows the seed. With one bit the signs are scaled by |y|^2 / |y|_1, which is unbiased for
    uniform rotations (Vargaftik et al., NeurIPS 2021) and nearly so for these if the leaf is dense;
    a few large numbers may hide small ones: use error feedback. With more bits they are rounded as
    in `Qsgd`.
    """

    bits_per_number: int = static(default=1)

    def leaf(self, x, key):
        flat, size = x.reshape(-1), x.size
        signs_key, round_key = jax.random.split(key)
        width = next_power_of_two(size)
        signs = jax.random.rademacher(signs_key, (width,), x.dtype)
        rotated = hadamard(jnp.pad(flat, (0, width - size)) * signs)
        if self.bits_per_number == 1:
            total = jnp.sum(jnp.abs(rotated))
            scale = jnp.sum(jnp.square(rotated)) / jnp.where(total > 0, total, 1)
            sent = scale * jnp.where(rotated < 0, -1.0, 1.0).astype(x.dtype)
        else:
            sent = Qsgd(self.bits_per_number).leaf(rotated, round_key)
        return (hadamard(sent) * signs)[:size].reshape(x.shape)

    def leaf_bits(self, size, width):
        return next_power_of_two(size) * self.bits_per_number + SCALE_BITS + SEED_BITS


def num_sent(size: int, rate: float) -> int:
    """Return how many numbers a sparse compressor sends: ceil(rate * size), at least one."""
    return min(size, max(1, math.ceil(rate * size - 1e-9)))


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


def hadamard(x: jax.Array) -> jax.Array:
    """Return the orthonormal Walsh-Hadamard transform of a vector of 2^k numbers."""
    size = len(x)
    for _ in range(int(np.log2(size))):
        x = x.reshape(-1, 2)  # pairs of neighbours to the front: all bits once around
        x = jnp.stack([x[:, 0] + x[:, 1], x[:, 0] - x[:, 1]]).reshape(-1)
    return x / math.sqrt(size)


COMPRESSORS: dict[str, Callable[..., Any]] = {
    "qsgd": Qsgd,
    "uniform": Uniform,
    "top_k": TopK,
    "rand_k": RandK,
    "sign": Sign,
    "rotate": Rotate,
}
