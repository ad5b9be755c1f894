"""Layers that take low-rank adapters, and their computation, in linen, NNX and Equinox modules.

The factors A [inputs, rank] and B [rank, outputs] are leaves beside the layer's kernel. A
convolution's inputs are those of a window, in the kernel's order: A is a kernel with `rank` output
channels, and B one of 1x1.
"""

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax

from fedjax_pfl.models.layers import Conv, Dense
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.typing import Tree

A, B = "lora_a", "lora_b"
Layer = tuple[tuple[str, ...], int, int]  # path of the module, inputs, outputs


def linen_layers(init: Callable[..., Any], inputs: jax.ShapeDtypeStruct) -> list[Layer]:
    """Return the layers of linen modules that take adapters, in the order of their calls.

    Layers whose kernels a transformation such as `nn.scan` stacks take none.

    Args:
      init: function of a key and a batch that calls the modules.
      inputs: shape of a batch.
    """
    layers: dict[tuple[str, ...], tuple[tuple[int, ...], int]] = {}

    def noted(call, args, kwargs, context):
        out, module = call(*args, **kwargs), context.module
        if context.method_name == "__call__" and (axes := _input_axes(module)):
            shape = module.get_variable("params", "kernel").shape
            layers[module.path] = shape, axes
        return out

    with nn.intercept_methods(noted):
        params = jax.eval_shape(init, jax.random.key(0), inputs)["params"]
    return [
        (path, *_sizes(shape, axes))
        for path, (shape, axes) in layers.items()
        if trees.at(params, path)["kernel"].shape == shape
    ]


def linen_adapters(scale: float) -> Any:
    """Context in which linen layers add `scale` times the term of their adapters, if any."""

    def added(call, args, kwargs, context):
        module = context.module
        adapted = context.method_name == "__call__" and module.has_variable("params", A)
        axes = _input_axes(module) if adapted else 0
        if not axes:
            return call(*args, **kwargs)
        a, b = (module.get_variable("params", name) for name in (A, B))
        if isinstance(module, Conv | nn.Conv):
            return _with_convolution(call, args, kwargs, module, a, b, scale)
        out = call(*args, **kwargs)
        a, b = a.astype(out.dtype), b.astype(out.dtype)
        x = args[0] if args else kwargs["inputs"]
        lead = x.shape[: x.ndim - axes]
        more = x.reshape(*lead, -1).astype(out.dtype) @ a @ b
        return out + scale * more.reshape(out.shape)

    return nn.intercept_methods(added)


def _with_convolution(call, args, kwargs, module, a, b, scale):
    """Return a convolution's outputs with the term of its adapters, pooled if they are."""
    x, *pool = args or (kwargs["inputs"],)
    out = call(x)
    shape = module.get_variable("params", "kernel").shape
    narrow = module.clone(parent=None, name=None, features=a.shape[1], use_bias=False)
    kernel = a.reshape(*shape[:-1], -1).astype(out.dtype)
    more = narrow.apply({"params": {"kernel": kernel}}, x.astype(out.dtype))
    out = out + scale * (more @ b.astype(out.dtype))
    pool = (*pool, kwargs.get("pool"))[0]
    return out if pool is None else pool(out)


def _input_axes(module: nn.Module) -> int:
    """Return how many axes of a layer's kernel are contracted; 0 if it takes no adapters."""
    if isinstance(module, Conv):
        return 3
    if isinstance(module, nn.Conv):
        plain = module.feature_group_count == 1 and getattr(module, "mask", None) is None
        size = module.kernel_size
        return (len(size) if isinstance(size, tuple | list) else 1) + 1 if plain else 0
    if isinstance(module, nn.DenseGeneral):
        given: Any = module.axis
        axis = given if isinstance(given, tuple | list) else (given,)
        last = sorted(axis) == [*range(-len(axis), 0)]
        return len(axis) if last and not module.batch_dims else 0
    return int(isinstance(module, Dense | nn.Dense))


def _sizes(shape: tuple[int, ...], axes: int) -> tuple[int, int]:
    return math.prod(shape[:axes]), math.prod(shape[axes:])


def nnx_layers(module: Any) -> Iterator[Layer]:
    """Yield the layers of an NNX module that take adapters."""
    for path, part in _nnx_parts(module):
        yield path, *_sizes(part.kernel.shape, _nnx_axes(part))


def in_nnx(module: Any, params: Tree) -> None:
    """Make the layers of an NNX module add the terms of the adapters in `params`, in place."""
    for path, part in _nnx_parts(module):
        own = _part(params, path)
        if A in own:
            name = "conv_general_dilated" if hasattr(part, "strides") else "dot_general"
            axes, usual = _nnx_axes(part), getattr(part, name) or jax.lax.dot_general
            setattr(part, name, _both(usual, own[A], own[B], axes))


def _both(product: Callable[..., Any], a: jax.Array, b: jax.Array, axes: int) -> Callable[..., Any]:
    """Return a product of inputs and a kernel as one that adds the adapters' term."""

    def added(x, kernel, *args, **kwargs):
        out = product(x, kernel, *args, **kwargs)
        first = a.reshape(*kernel.shape[:axes], -1).astype(kernel.dtype)
        more = product(x, first, *args, **kwargs) @ b.astype(kernel.dtype)
        return out + more.reshape(out.shape).astype(out.dtype)

    return added


def _nnx_parts(module: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    from flax import nnx  # slow import: only where it is used

    for path, part in nnx.iter_graph(module):
        if isinstance(part, nnx.Linear | nnx.LinearGeneral | nnx.Conv) and _nnx_axes(part):
            yield tuple(map(str, path)), part


def _nnx_axes(part: Any) -> int:
    """Return how many axes of a layer's kernel are contracted; 0 if it takes no adapters."""
    shape = part.kernel.shape
    if hasattr(part, "strides"):
        plain = part.feature_group_count == 1 and getattr(part, "mask", None) is None
        return len(shape) - 1 if plain and shape == part.kernel_shape else 0
    if hasattr(part, "batch_axis"):
        own = (*part.in_features, *part.out_features)
        other = part.batch_axis or part.dot_general_cls is not None
        return len(part.in_features) if shape == own and not other else 0
    return int(shape == (part.in_features, part.out_features))  # others are stacked


def equinox_layers(module: Any) -> Iterator[Layer]:
    """Yield the layers of an Equinox module that take adapters."""
    for path, part in trees.by_path(module, _in_equinox).items():
        if _in_equinox(part):
            outputs, *inputs = part.weight.shape
            yield tuple(path.split("/")), math.prod(inputs), outputs


def in_equinox(module: Any, params: Tree) -> Any:
    """Return an Equinox module whose layers add the terms of the adapters in `params`."""

    def one(path, part):
        own = _part(params, trees.path_name(path).split("/")) if _in_equinox(part) else {}
        return _equinox_layer()(part, own[A], own[B]) if A in own else part

    return jax.tree_util.tree_map_with_path(one, module, is_leaf=_in_equinox)


def _in_equinox(part: Any) -> bool:
    """Return whether a part of an Equinox module takes adapters."""
    eqx = importlib.import_module("equinox")
    if isinstance(part, eqx.nn.Conv):
        return part.groups == 1
    return isinstance(part, eqx.nn.Linear) and part.weight.shape == (
        part.out_features, part.in_features
    )  # fmt: skip


@functools.cache
def _equinox_layer() -> type:
    eqx = importlib.import_module("equinox")

    class WithAdapter(eqx.Module):
        """A layer, and the factors of its adapter."""

        layer: Any
        a: jax.Array
        b: jax.Array

        def __getattr__(self, name):
            return getattr(self.layer, name)

        def __call__(self, x, *, key=None):
            out = self.layer(x)
            a, b = self.a.astype(out.dtype), self.b.astype(out.dtype)
            if isinstance(self.layer, eqx.nn.Linear):
                return out + x @ a @ b
            kernel = a.T.reshape(-1, *self.layer.weight.shape[1:])
            narrow = eqx.tree_at(lambda layer: layer.weight, self.layer, kernel)
            if self.layer.use_bias:
                none = jax.numpy.zeros((a.shape[1], *[1] * (kernel.ndim - 2)), out.dtype)
                narrow = eqx.tree_at(lambda layer: layer.bias, narrow, none)
            return out + jax.numpy.einsum("r...,rf->f...", narrow(x), b)

    return WithAdapter


def _part(params: Tree, path: Any) -> Tree:
    """Return the part of nested dicts at a path, or {}."""
    for name in path:
        params = params.get(str(name), {}) if isinstance(params, Mapping) else {}
    return params
