"""Replacement of the convolutions in Flax's layers by this package's kernels.

Flax's `Conv`, of linen and of NNX, has a field for a function like `jax.lax.conv_general_dilated`.
A task's calls set it to the function below; Flax and JAX are unchanged.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models.kernels import forms
from fedjax_pfl.models.layers import convolve

FIELD = "conv_general_dilated"
# Flax's layout in terms of lax, by the number of axes: channels last, kernels [..., C, features].
LAYOUT = {3: ((0, 2, 1), (2, 1, 0), (0, 2, 1)), 4: ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))}


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **options: Any,
) -> jax.Array:
    """Compute `jax.lax.conv_general_dilated` in the platform's form, equal to rounding.

    [B, H, W, C] or [B, T, C] with equal strides is computed by `layers.convolve`. Groups, dilation,
    a given precision, negative padding, kernels larger than the padded input and other layouts are
    computed by XLA.
    """
    if forms.form() == "xla" or not _can(lhs, window_strides, **options):
        return jax.lax.conv_general_dilated(lhs, rhs, window_strides, padding, **options)
    if isinstance(padding, str):
        sizes = lhs.shape[1:-1], rhs.shape[:-2]
        padding = jax.lax.padtype_to_pads(*sizes, window_strides, padding)
    sides = [sum(pair) + size for pair, size in zip(padding, lhs.shape[1:-1], strict=True)]
    cropped = any(size < 0 for pair in padding for size in pair)
    if cropped or any(size < window for size, window in zip(sides, rhs.shape, strict=False)):
        return jax.lax.conv_general_dilated(lhs, rhs, window_strides, padding, **options)
    if any(size for pair in padding for size in pair):
        lhs = jnp.pad(lhs, ((0, 0), *padding, (0, 0)))
    stride = window_strides[0]
    if lhs.ndim == 3:
        return convolve(lhs[:, None], rhs[None], stride)[:, 0]
    return convolve(lhs, rhs, stride)


def _can(
    lhs: jax.Array,
    strides: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    **others: Any,
) -> bool:
    """Return whether `convolve` supports a convolution with these options."""
    undilated = {*(lhs_dilation or ()), *(rhs_dilation or ())} <= {1}
    usual = feature_group_count == 1 and all(value is None for value in others.values())
    here = lhs.ndim in LAYOUT and tuple(map(tuple, dimension_numbers)) == LAYOUT[lhs.ndim]
    return undilated and usual and here and len(set(strides)) == 1


def in_linen() -> AbstractContextManager[Any]:
    """Context in which linen's `Conv` layers use `conv_general_dilated`."""
    return nn.intercept_methods(_with_field)


def _with_field(call: Callable[..., Any], args, kwargs, context) -> Any:
    module = context.module
    own = isinstance(module, nn.Conv) and context.method_name == "__call__"
    if not own or module.conv_general_dilated or module.conv_general_dilated_cls:
        return call(*args, **kwargs)
    object.__setattr__(module, FIELD, conv_general_dilated)  # modules are frozen
    try:
        return call(*args, **kwargs)
    finally:
        object.__setattr__(module, FIELD, None)


def in_nnx(module: Any) -> None:
    """Make the `Conv` layers of an NNX module use `conv_general_dilated`, in place."""
    from flax import nnx  # slow import: only where it is used

    for _, part in nnx.iter_graph(module):
        if isinstance(part, nnx.Conv) and part.conv_general_dilated is jax.lax.conv_general_dilated:
            part.conv_general_dilated = conv_general_dilated
