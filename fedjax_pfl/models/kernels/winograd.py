"""Convolutions with fewer products than their definition has (Winograd, "Arithmetic Complexity of
Computations", 1980; Lavin & Gray, arXiv:1509.09308).

m neighbouring outputs of a filter with r taps are m + r - 1 products instead of m r, by Toom and
Cook's way: taps and inputs are evaluated at points, multiplied, and interpolated. Here it is done
along one axis of the image; the other taps and the channels are summed by matrix products.
A filter of 5 taps then takes 8 products for 4 outputs instead of 20.
"""

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, partial, reduce

import jax
import jax.numpy as jnp

from fedjax_pfl.models.kernels import forms

# Small ones, for rounding: with all seven a float32 result is about 2.5 times as far from the exact
# one as the plain sum of products.
POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))
CHANNELS = 16  # with fewer inputs or outputs, evaluation costs more than it saves
Matrix = tuple[tuple[float, ...], ...]


def tile(inputs: Sequence[int], kernel: Sequence[int], stride: int, dtype) -> int:
    """Return how many outputs along the width to compute at once; 1 if nothing is saved.

    More than 1 only for a CPU, where arithmetic limits a convolution (`forms.form`), and only in
    float32 or float64: points and interpolation would cost bfloat16 its few digits.

    Args:
      inputs: (B, H, W, C), padding included.
      kernel: (kh, kw, C, features).
    """
    taps, outputs = kernel[1], inputs[2] - kernel[1] + 1
    rows = inputs[0] * (inputs[1] - kernel[0] + 1)
    exact = jnp.dtype(dtype) in (jnp.float32, jnp.float64)
    if not (forms.form() == "products" and exact and stride == 1):
        return 1
    if min(kernel[2:]) < CHANNELS or taps < 3 or outputs < 2:
        return 1

    def products(m):
        return (m + taps - 1 if m > 1 else taps) * -(-outputs // m)

    best = min(range(1, max(2, len(POINTS) + 3 - taps)), key=products)
    # With few rows evaluating the taps costs more than it saves.
    enough = 4 * rows * -(-outputs // best) >= min(kernel[2:])
    return best if enough and 3 * products(best) < 2 * products(1) else 1


@lru_cache(maxsize=64)
def transforms(m: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return (inputs [a, a], taps [a, r], outputs [m, a]) with a = m + r - 1: for the correlation
    y_i = sum_j g_j x_{i+j}, y = outputs ((taps g) * (inputs x)).

    A polynomial product is interpolated from its values at a - 1 points and its top coefficient;
    the transposed map is the correlation. `inputs` is scaled to whole numbers, `taps` back.
    """
    count = m + taps - 1
    points = POINTS[: count - 1]

    def values(length):
        top = [Fraction(0)] * (length - 1) + [Fraction(1)]
        return [*([p**j for j in range(length)] for p in points), top]

    at_points, short, interpolation = values(taps), values(m), _inverse(values(count))
    inputs, weights = [], []
    for i, row in enumerate(at_points):
        line = [interpolation[j][i] for j in range(count)]
        scale = math.lcm(*(entry.denominator for entry in line))
        inputs.append(tuple(float(scale * entry) for entry in line))
        weights.append(tuple(float(entry / scale) for entry in row))
    outputs = tuple(tuple(float(short[i][j]) for i in range(count)) for j in range(m))
    return tuple(inputs), tuple(weights), outputs


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Invert exactly by Gauss-Jordan elimination."""
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = next(k for k in range(i, size) if rows[k][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [entry / rows[i][i] for entry in rows[i]]
        for k in range(size):
            if k != i:
                factor = rows[k][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [row[size:] for row in rows]


def _combined(coefficients: Sequence[float], parts: Sequence[jax.Array] | jax.Array) -> jax.Array:
    """Return sum_i coefficients[i] parts[i] without zeros; an array's parts are on axis 0."""
    terms = [
        part if c == 1 else -part if c == -1 else part * jnp.asarray(c, part.dtype)
        for c, part in zip(coefficients, parts, strict=True)
        if c
    ]
    return reduce(operator.add, terms)


def _column(matrix: Matrix, j: int) -> list[float]:
    return [row[j] for row in matrix]


def _padded(x: jax.Array, axis: int, low: int, high: int) -> jax.Array:
    return jnp.pad(x, [(low, high) if i == axis else (0, 0) for i in range(x.ndim)])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve(x: jax.Array, kernel: jax.Array, m: int) -> jax.Array:
    """Convolve without padding: [B, H, W, C] by [kh, kw, C, F] gives [B, H', W', F].

    Args:
      m: outputs along the width that are made at once; see `tile`.
    """
    return _forward(x, kernel, m)[0]


def _forward(x, kernel, m):
    (batch, height, width, channels), (kh, taps, _, features) = x.shape, kernel.shape
    high, wide = height - kh + 1, width - taps + 1
    count, tiles = m + taps - 1, -(-wide // m)
    on_inputs, on_taps, on_outputs = transforms(m, taps)
    x = _padded(x, 2, 0, (tiles - 1) * m + count - width)
    last = (tiles - 1) * m + 1
    windows = [jax.lax.slice_in_dim(x, i, i + last, stride=m, axis=2) for i in range(count)]
    seen = jnp.stack([_combined(row, windows) for row in on_inputs])  # [a, B, H, tiles, C]
    seen = jnp.concatenate([seen[:, :, i : i + high] for i in range(kh)], axis=-1)
    seen = seen.reshape(count, batch * high * tiles, kh * channels)
    columns = [kernel[:, j] for j in range(taps)]
    weights = jnp.stack([_combined(row, columns) for row in on_taps])
    weights = weights.reshape(count, kh * channels, features)
    products = jnp.matmul(seen, weights)  # [a, B H' tiles, F]
    out = jnp.stack([_combined(row, products) for row in on_outputs], axis=1)
    out = out.reshape(batch, high, tiles * m, features)[:, :, :wide]
    return out, (seen, weights, kernel)


def _backward(m, saved, gradient):
    """Apply the transposes of the linear maps of `_forward`, in reverse order."""
    seen, weights, kernel = saved
    (batch, high, wide, _), (kh, taps, channels, features) = gradient.shape, kernel.shape
    count, tiles = m + taps - 1, -(-wide // m)
    on_inputs, on_taps, on_outputs = transforms(m, taps)
    gradient = _padded(gradient, 2, 0, tiles * m - wide).reshape(-1, m, features)
    lines = [gradient[:, i] for i in range(m)]
    moved = jnp.stack([_combined(_column(on_outputs, i), lines) for i in range(count)])

    by_weights = jnp.einsum("ark,arf->akf", seen, moved).reshape(count, kh, channels, features)
    columns = [_combined(_column(on_taps, j), by_weights) for j in range(taps)]
    by_kernel = jnp.stack(columns, axis=1)

    by_seen = jnp.einsum("arf,akf->ark", moved, weights)
    by_seen = by_seen.reshape(count, batch, high, tiles, kh, channels)
    padded = [_padded(by_seen[..., i, :], 2, i, kh - 1 - i) for i in range(kh)]
    by_seen = reduce(operator.add, padded)
    windows = [_combined(_column(on_inputs, i), by_seen) for i in range(count)]
    # Column t m + s of the image is the window's element s of tile t, s + m of tile t - 1, ...
    more = -(-count // m) - 1
    columns = [
        sum(_padded(windows[i], 2, i // m, more - i // m) for i in range(s, count, m))
        for s in range(m)
    ]
    by_x = jnp.stack(columns, axis=3)
    by_x = by_x.reshape(batch, high + kh - 1, (tiles + more) * m, channels)
    return by_x[:, :, : wide + taps - 1], by_kernel


convolve.defvjp(_forward, _backward)
