"""Building blocks of the networks: layers that stay fast under a client axis.

Convolution, pooling and sums over channels have a form for each platform, see `forms`.
"""

import functools
import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models.kernels import forms, winograd
from fedjax_pfl.utils.errors import require, require_name

LAYER_INITIALIZERS = ("torch", "flax", "kaiming")
Pool = Callable[[jax.Array], jax.Array]


def initializers(name: str, fan_in: int):
    """Return (kernel initializer, bias initializer) of a layer.

    "torch": both uniform in +-1/sqrt(fan_in), PyTorch's default, under which the papers' networks
    were trained. "flax": LeCun normal kernels and zero biases. "kaiming": normal kernels of
    variance 2/fan_in, and PyTorch's biases.
    """
    if name == "flax":
        return nn.initializers.lecun_normal(dtype=jnp.float32), nn.initializers.zeros_init()
    require_name("initializer", name, LAYER_INITIALIZERS)
    bound = fan_in**-0.5

    def uniform(key, shape, dtype=jnp.float32):
        # A flat draw has the same numbers and compiles several times faster.
        flat = jax.random.uniform(key, (math.prod(shape),), dtype, -bound, bound)
        return flat.reshape(shape)

    def normal(key, shape, dtype=jnp.float32):
        return (2**0.5 * bound * jax.random.normal(key, (math.prod(shape),), dtype)).reshape(shape)

    return (normal if name == "kaiming" else uniform), uniform


def _slices(x: jax.Array, axis: int, size: int, stride: int) -> list[jax.Array]:
    """The 1st, 2nd, ... element of each sliding window along an axis: `size` arrays."""
    last = (x.shape[axis] - size) // stride * stride
    return [jax.lax.slice_in_dim(x, i, i + last + 1, stride=stride, axis=axis) for i in range(size)]


def patches(x: jax.Array, kernel: Sequence[int], stride: int = 1) -> jax.Array:
    """Return sliding windows without padding: [B, H, W, C] gives [B, H', W', kh * kw * C].

    Columns first, then rows: kh + kw slices instead of kh * kw.
    """
    kh, kw = kernel
    x = jnp.concatenate(_slices(x, 2, kw, stride), axis=-1)
    return jnp.concatenate(_slices(x, 1, kh, stride), axis=-1)


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0) -> jax.Array:
    """Convolve [B, H, W, C] by [kh, kw, C, F] to [B, H', W', F].

    On a CPU as patches times weights, or with fewer products if that is faster
    (`kernels.winograd`). Height and width are padded by `padding` zeros on each side; accelerators
    make no padded copy.
    """
    if forms.form() == "xla":
        around = (padding, padding)
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), (around, around),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
    x = _pad(x, padding)
    kh, kw, channels, features = kernel.shape
    if kw == 1 < kh and x.shape[2] == 1:  # over time: the long axis is the width
        x, kernel = x.swapaxes(1, 2), kernel.swapaxes(0, 1)
        return convolve(x, kernel, stride).swapaxes(1, 2)
    m = winograd.tile(x.shape, kernel.shape, stride, x.dtype)
    if m > 1 and x.dtype == kernel.dtype:
        return winograd.convolve(x, kernel, m)
    x = patches(x, (kh, kw), stride)
    return x @ kernel.reshape(kh * kw * channels, features)


def _pad(x: jax.Array, padding: int, value: float = 0) -> jax.Array:
    if not padding:
        return x
    around = (padding, padding)
    return jnp.pad(x, ((0, 0), around, around, (0, 0)), constant_values=value)


def channel_sum(x: jax.Array, weights: jax.Array | None = None) -> jax.Array:
    """Sum over all axes but the last, [C]; on a CPU by a product, which is faster.

    Args:
      x: [..., C].
      weights: of each row of C values, flat; one by default.
    """
    if forms.form() == "xla":
        x = x if weights is None else x * weights.reshape(*x.shape[:-1], 1)
        return jnp.sum(x, axis=tuple(range(x.ndim - 1)))
    return _summed(x, weights)


def _summed(x: jax.Array, weights: jax.Array | None = None) -> jax.Array:
    rows = x.reshape(-1, x.shape[-1])
    weights = jnp.ones(len(rows), x.dtype) if weights is None else weights
    return jnp.matmul(weights, rows, precision=jax.lax.Precision.HIGHEST)


def add_channels(x: jax.Array, shift: jax.Array) -> jax.Array:
    """Return x [..., C] + shift [C], with the shift's gradient by `channel_sum`."""
    return x + shift if forms.form() == "xla" else _added(x, shift)


def add_and_pool(x: jax.Array, shift: jax.Array, pool: Pool | None) -> jax.Array:
    """Return `pool(x + shift)` of x [..., C] and shift [C]; without a pool, x + shift.

    The pool must commute with a number added to each channel, as a maximum does. On accelerators it
    comes first, so that fewer numbers are added. A CPU adds while it computes x.
    """
    if pool is None:
        return add_channels(x, shift)
    if forms.form() == "xla":
        return add_channels(pool(x), shift)
    return pool(add_channels(x, shift))


def scale_channels(x: jax.Array, factor: jax.Array) -> jax.Array:
    """Return x [..., C] * factor [C], with the factor's gradient by `channel_sum`."""
    return x * factor if forms.form() == "xla" else _scaled(x, factor)


@jax.custom_vjp
def _added(x: jax.Array, shift: jax.Array) -> jax.Array:
    return x + shift


_added.defvjp(lambda x, shift: (x + shift, None), lambda _, g: (g, _summed(g)))


@jax.custom_vjp
def _scaled(x: jax.Array, factor: jax.Array) -> jax.Array:
    return x * factor


_scaled.defvjp(
    lambda x, factor: (x * factor, (x, factor)),
    lambda saved, g: (g * saved[1], _summed(g * saved[0])),
)


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


def _zeros(padding: int | str, kernel: Sequence[int], stride: int = 1) -> int:
    """Return the number of zeros on each side of height and width."""
    if padding == "VALID":
        return 0
    if padding == "SAME" and stride == 1 and len(set(kernel)) == 1 and kernel[0] % 2:
        return kernel[0] // 2
    allowed = "a whole number, 'VALID', or 'SAME' for odd square kernels without strides"
    require(isinstance(padding, int) and padding >= 0, "padding", padding, allowed)
    return int(padding)


class Conv(nn.Module):
    """A convolution by `convolve`, [B, H, W, C] to [B, H', W', features].

    A kernel of (k, 1) on [B, T, 1, C] is a convolution over time.

    Attributes:
      features: output channels.
      kernel_size: height and width of the kernel.
      padding: zeros on each side of height and width, "VALID" for none, or "SAME" for as many as
        keep the size (odd square kernels, stride 1).
      initializer: "torch", "flax" or "kaiming", see `initializers`.
      stride: along height and width.
      use_bias: whether a bias is added.

    Raises:
      InputError: unsupported padding.
    """

    features: int
    kernel_size: tuple[int, int]
    padding: int | str = 0
    initializer: str = "torch"
    stride: int = 1
    use_bias: bool = True

    @nn.compact
    def __call__(self, x, pool: Pool | None = None):
        """Apply the layer and, if given, a pooling; see `add_and_pool`."""
        shape = (*self.kernel_size, x.shape[-1], self.features)
        fan_in = shape[0] * shape[1] * shape[2]
        kernel_init, bias_init = initializers(self.initializer, fan_in)
        kernel = self.param("kernel", kernel_init, shape).astype(x.dtype)
        padding = _zeros(self.padding, self.kernel_size, self.stride)
        out = convolve(x, kernel, self.stride, padding)
        if not self.use_bias:
            return out if pool is None else pool(out)
        bias = self.param("bias", bias_init, (self.features,))
        return add_and_pool(out, bias.astype(x.dtype), pool)


class Embedding(nn.Module):
    """Rows of a table, token ids [B, T] to [B, T, features]; id 0 is padding and always zero.

    "torch" draws the table from N(0, 1); "flax" divides it by the square root of `features`.
    """

    vocab_size: int
    features: int
    initializer: str = "torch"

    @nn.compact
    def __call__(self, ids):
        require_name("initializer", self.initializer, LAYER_INITIALIZERS)
        deviation = self.features**-0.5 if self.initializer == "flax" else 1.0

        def init(key, shape, dtype=jnp.float32):
            return (deviation * jax.random.normal(key, shape, dtype)).at[0].set(0)

        table = self.param("table", init, (self.vocab_size, self.features))
        # The mask also keeps row 0's gradient zero.
        return jnp.where(ids[..., None] == 0, 0, jnp.take(table, ids, axis=0, mode="clip"))


def max_pool(
    x: jax.Array, size: int = 2, stride: int | None = None, padding: int | str = 0
) -> jax.Array:
    """Take the maximum over windows, [B, H, W, C] to [B, H', W', C].

    Args:
      size: height and width of a window.
      stride: stride of the windows; by default their size. Remaining rows and columns are dropped.
      padding: as for `Conv`, with minus infinity.

    Raises:
      InputError: unsupported padding.
    """
    stride = size if stride is None else stride
    padding = _zeros(padding, (size, size), stride)
    if forms.form() == "xla":
        window, steps, around = (1, size, size, 1), (1, stride, stride, 1), (padding, padding)
        around = ((0, 0), around, around, (0, 0))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, steps, around)
    if stride == size and not padding:
        height, width = x.shape[1] // size, x.shape[2] // size
        return _tiled_max(x[:, : height * size, : width * size], size)
    x = _pad(x, padding, -jnp.inf)
    for axis in (2, 1):
        x = functools.reduce(jnp.maximum, _slices(x, axis, size, stride))
    return x


def _tiles(x: jax.Array, size: int) -> list[jax.Array]:
    """The 1st, 2nd, ... element of every tile, row by row: size * size arrays [B, H', W', C]."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // size, size, width // size, size, channels)
    return [x[:, :, i, :, j] for i in range(size) for j in range(size)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _tiled_max(x: jax.Array, size: int) -> jax.Array:
    """Maximum over tiles; of equal elements the first gets the gradient, as in PyTorch.

    JAX's own gradient of a maximum shares it among equals, at the price of counting them.
    """
    return functools.reduce(jnp.maximum, _tiles(x, size))


def _tiled_max_forward(x, size):
    out = functools.reduce(jnp.maximum, _tiles(x, size))  # not itself: it has no forward mode
    return out, (x, out)


def _tiled_max_backward(size, saved, gradient):
    x, out = saved
    free, parts = True, []
    for tile in _tiles(x, size):
        largest = tile == out
        parts.append(jnp.where(largest & free, gradient, 0))
        free = free & ~largest
    rows = [jnp.stack(parts[i : i + size], axis=3) for i in range(0, len(parts), size)]
    return (jnp.stack(rows, axis=2).reshape(x.shape),)


_tiled_max.defvjp(_tiled_max_forward, _tiled_max_backward)


def global_mean(x: jax.Array) -> jax.Array:
    """Take the mean over height and width, [B, H, W, C] to [B, C]."""
    return jnp.mean(x, axis=(1, 2))
