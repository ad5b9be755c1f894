"""Conversion of PyTorch weights to parameters of Flax networks.

Axes differ: a linear layer's weight is [outputs, inputs] in PyTorch and [inputs, outputs] in Flax,
a convolution's [outputs, inputs, height, width] and [height, width, inputs, outputs]. PyTorch's
images have their channels first, and here last, which also permutes the inputs of a dense layer
after a flattened image.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan_of_model import paths_in_order
from fedjax_pfl.models import vit_names
from fedjax_pfl.models.cnn import CNN
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.models.task import LinenTask, Task
from fedjax_pfl.models.torch_layers import (
    IGNORED,
    Layers,
    arrays_of,
    joined,
    paired,
    torch_layers_of,
)
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError, require_name, warn

MARKS = ("weight", "running_mean", "running_var", IGNORED)  # names of leaves that only PyTorch has
# Names of a PyTorch module's leaves, and those that stand for them in a layer here.
ROLES = {
    "weight": ("kernel", "scale", "embedding", "table"), "bias": ("bias",),
    "running_mean": ("mean",), "running_var": ("var",),
    "weight_ih": ("kernel",), "weight_hh": ("recurrent",),
}  # fmt: skip


class Given(NamedTuple):
    """Values for a network's leaves.

    Attributes:
      values: arrays by the path of a leaf.
      misfits: descriptions of values of another shape, by the path of their leaf.
      unused: names of values without a leaf.
      unclear: paths of the leaves whose axes or rows shapes don't tell.
    """

    values: dict[str, np.ndarray]
    misfits: dict[str, str]
    unused: tuple[str, ...]
    unclear: tuple[str, ...] = ()


def looks_like_torch(arrays: Mapping[str, Any], leaves: Mapping[str, Any]) -> bool:
    """Return whether names are a PyTorch module's, and not those of the network's own leaves."""
    own = {*leaves} | {path.partition("/")[2] for path in leaves}
    marked = [name for name in arrays if name.rpartition(".")[2] in MARKS]
    return bool(marked) and not any(name.replace(".", "/") in own for name in marked)


def torch_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return PyTorch's shape of a kernel; None for other leaves."""
    if path.rpartition("/")[2] != "kernel" or len(shape) < 2:
        return None
    return (*shape[:-3:-1], *shape[:-2])


def converted(
    state_dict: Mapping[str, Any],
    task: Task,
    inputs: jax.ShapeDtypeStruct,
    own_layers: Layers,
    *,
    names: Mapping[str, str],
    flattened: Mapping[str, Sequence[int]],
    ordered: bool,
) -> Given:
    """Convert as `from_torch` does.

    Args:
      state_dict: PyTorch tensors or NumPy arrays by name.
      task: the task of the network.
      inputs: shape of a batch.
      own_layers: see `convertible_layers`.
      names, flattened: see `from_torch`.
      ordered: whether the order of the arrays is the module's.
    """
    arrays = arrays_of(state_dict)
    torch_layers = torch_layers_of(arrays if names else vit_names.renamed(arrays))
    channels = behind_images(task, own_layers, inputs)
    for layer, sizes in flattened.items():
        require_name("layer in flattened", layer, own_layers)
        channels[layer] = sizes[-1] if sizes else 1
    pairs = paired(torch_layers, own_layers, names, ordered)
    given = Given({}, {}, ())
    for layer, own in pairs.items():
        prefix = f"{layer}." if layer else ""
        for name, value in joined(torch_layers[layer]).items():
            leaf = next((r for r in ROLES.get(name, (name,)) if own and r in own_layers[own]), None)
            if own is None or leaf is None:
                given = given._replace(unused=(*given.unused, prefix + name))
                continue
            path, like = own_layers[own][leaf]
            rows = leaf == "kernel" or "kernel" not in own_layers[own]  # not a dense layer's bias
            before = channels.get(own, 1) if rows else 1
            array = _turned(value, leaf, like.shape, before, prefix + name, own)
            if array.shape == like.shape:
                given.values[path] = array
            else:
                shapes = f"{list(value.shape)} for {path} {list(like.shape)}"
                given.misfits[path] = f"{prefix}{name} {shapes}"
    return given


def layers_of(task: Task, inputs: jax.ShapeDtypeStruct) -> Layers:
    """Return (path, shape) of a network's leaves by layer and name, in creation order."""
    order: list[str] = []

    def made(key):
        model = task.init(key, jnp.zeros(inputs.shape, inputs.dtype))
        order.extend(paths_in_order(model))
        return model

    shapes = trees.by_path(jax.eval_shape(made, jax.random.key(0)))
    layers: Layers = {}
    for path in order:
        layer, _, name = path.partition("/")[2].rpartition("/")
        layers.setdefault(layer, {})[name] = (path, shapes[path])
    return layers


def convertible_layers(task: Task, inputs: jax.ShapeDtypeStruct) -> Layers:
    """Return `layers_of` a network without transposed convolutions.

    Raises:
      InputError: it has one, whose weights have their axes in yet another order.
    """

    def checked(call, args, kwargs, context):
        if isinstance(context.module, nn.ConvTranspose):
            raise InputError("Weights of transposed convolutions can't be converted.")
        return call(*args, **kwargs)

    with nn.intercept_methods(checked):
        return layers_of(task, inputs)


def behind_images(
    task: Task, own_layers: Layers, inputs: jax.ShapeDtypeStruct
) -> dict[str, int | None]:
    """Return the channels of the flattened image before a layer; None if it may be another one.

    The library's own networks are known. In others it is each layer with another number of inputs
    than the layers since the last convolution have outputs. Only linen's layers are in the order of
    their calls: in other networks a convolution that follows may come before the layer, too.
    """
    module = task.module if isinstance(task, LinenTask) else None
    module = getattr(module, "network", module)  # that of `Projected`
    flattens = isinstance(module, CNN | MLP)
    if type(module).__module__.startswith(f"{__package__}.") and not flattens:
        return {}
    found: dict[str, int | None] = {}
    channels, of_image = inputs.shape[-1], len(inputs.shape) == 4
    widths = {channels}
    shapes = {
        layer: next((leaves[one][1].shape for one in ("kernel", "scale") if one in leaves), ())
        for layer, leaves in own_layers.items()
    }
    convolved = [shape[-1] for shape in shapes.values() if len(shape) > 2]
    for layer, shape in shapes.items():
        if len(shape) > 2:
            channels, of_image, widths = shape[-1], True, {shape[-1]}
            convolved = convolved[1:]
        elif shape:
            later = [] if module is not None else convolved
            several = (of_image and channels > 1) or any(1 < n < shape[0] for n in later)
            if several and shape[0] not in widths:
                found[layer] = channels if flattens else None
            widths |= {*shape[1:]}
    return found


def _turned(
    value: np.ndarray,
    leaf: str,
    shape: tuple[int, ...],
    channels: int | None,
    name: str,
    layer: str,
) -> np.ndarray:
    """Permute a value's axes to a leaf's, or to another shape if it does not fit."""
    if leaf == "table" and np.any(value[:1]):
        warn(
            f"{name}: {layer} takes id 0 for padding, with zeros for its embedding, and row 0 of "
            "the given table is not zero."
        )
    if leaf in ("kernel", "recurrent"):
        of_image = value.ndim > 2
        value = np.moveaxis(value, 1, -1) if of_image else value
        value = np.moveaxis(value, 0, -1)
        if of_image:
            return _without_ones(value, shape)
    if value.shape != shape or channels == 1:
        return value
    if channels is None or len(value) % channels:
        raise InputError(
            f"{layer!r} may take a flattened image, whose channels PyTorch has first: give "
            f"from_torch(flattened={{{layer!r}: (height, width, channels)}}), or {{{layer!r}: ()}} "
            "if it doesn't."
        )
    return value.reshape(channels, -1, *shape[1:]).swapaxes(0, 1).reshape(shape)


def _without_ones(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Drop axes of length 1 of kernels over time, and reshape a kernel of patches to a matrix."""

    def wide(sizes):
        return [n for n in sizes if n > 1]

    patches = len(shape) == 2 and value.ndim > 2
    same = value.size == math.prod(shape) and (patches or wide(value.shape) == wide(shape))
    return value.reshape(shape) if same else value
