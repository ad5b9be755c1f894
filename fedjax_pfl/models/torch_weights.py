"""Conversion of PyTorch weights to parameters of Flax networks.

Axes differ: a linear layer's weight is [outputs, inputs] in PyTorch and [inputs, outputs] in Flax,
a convolution's [outputs, inputs, height, width] and [height, width, inputs, outputs]. PyTorch's
images have their channels first, and here last, which also permutes the inputs of a dense layer
after a flattened image (see `flattening`).
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fedjax_pfl.aggregation.planning import paths_in_order
from fedjax_pfl.models import vit_names
from fedjax_pfl.models.flattening import CHANNELS, TRANSPOSED, UNCLEAR, Layout, layouts
from fedjax_pfl.models.task import Task, as_task
from fedjax_pfl.models.torch_layers import (
    HINT,
    IGNORED,
    Layers,
    arrays_of,
    joined,
    paired,
    several,
    torch_layers_of,
)  # fmt: skip
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError, require_name
from fedjax_pfl.utils.typing import Tree

MARKS = ("weight", "running_mean", "running_var", IGNORED)  # names of leaves that only PyTorch has
# Names of a PyTorch module's leaves, and those that stand for them in a layer here.
ROLES = {
    "weight": ("kernel", "scale", "embedding", "table"), "bias": ("bias",),
    "running_mean": ("mean",), "running_var": ("var",),
    "weight_ih": ("kernel",), "weight_hh": ("recurrent",),
}  # fmt: skip


@dataclass(frozen=True)
class Converted:
    """Result of converting a `state_dict`.

    Attributes:
      values: arrays by the path of a leaf.
      missing: paths of the leaves without a value.
      unused: names of values without a leaf.
      misfits: descriptions of values with another shape than their leaf.
    """

    values: dict[str, np.ndarray]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    misfits: tuple[str, ...]


def from_torch(
    state_dict: Mapping[str, Any],
    model: Any,
    input_shape: Sequence[int],
    *,
    names: Mapping[str, str] | None = None,
    flattened: Mapping[str, Sequence[int]] | None = None,
    strict: bool = True,
    input_dtype: str = "float32",
) -> Tree:
    """Convert the `state_dict` of a PyTorch module to a model of a network.

    Layers are matched by `names`, by the names of timm's and Hugging Face's vision transformers, by
    equal names (dots for slashes), and otherwise in their order among those of their kind:
    convolutions, matrices (linear layers and embeddings), normalization and recurrent layers. The
    axes of kernels are transposed, and the inputs of a dense layer after a flattened image
    permuted: these layers and the image's size are found in the traced network.

    Args:
      state_dict: PyTorch tensors or NumPy arrays by name, as `module.state_dict()` gives them.
      model: a linen or NNX module, or a `Task`, of the same layers.
      input_shape: of one sample, channels last, such as `(32, 32, 3)`.
      names: the network's layer for a PyTorch layer, such as `{"features.0": "conv_0"}`.
      flattened: (height, width, channels) of the image before a layer, by the name of the network's
        layer, if the traced network doesn't show it; () for a layer whose inputs have the same
        order in both.
      strict: False leaves out what only one of the two has. Shapes must fit in any case.
      input_dtype: type of the samples; `"int32"` for token ids.

    Returns:
      A model, `{"params": ..., "batch_stats": ...}`, of NumPy arrays, with the leaves that have
      values, for `federate(initial_model=...)`.

    Raises:
      InputError: a layer or leaf that only one of the two has, another shape, or a dense layer with
        an unknown order of inputs.
    """
    task = as_task(model)
    inputs = jax.ShapeDtypeStruct((2, *input_shape), jnp.dtype(input_dtype))
    result = converted(state_dict, task, inputs, names=names, flattened=flattened)
    if result.misfits:
        raise InputError(f"Shapes of the state_dict don't fit: {several(result.misfits)}. {HINT}")
    if strict and (result.missing or result.unused):
        parts = {"without a value": result.missing, "without a leaf": result.unused}
        text = "; ".join(f"{what}: {several(part)}" for what, part in parts.items() if part)
        raise InputError(
            f"The state_dict and the network have different layers; {text}. {HINT} strict=False "
            "leaves them out."
        )
    return traverse_util.unflatten_dict(result.values, sep="/")


def looks_like_torch(arrays: Mapping[str, Any], model: Tree) -> bool:
    """Return whether names are a PyTorch module's, and not those of the network's own leaves."""
    own = {*trees.by_path(model)}
    own |= {path.partition("/")[2] for path in own}
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
    *,
    names: Mapping[str, str] | None = None,
    flattened: Mapping[str, Sequence[int]] | None = None,
) -> Converted:
    """Convert as `from_torch` does, and report mismatches.

    Args:
      state_dict: PyTorch tensors or NumPy arrays by name.
      task: the task of the network.
      inputs: shape of a batch.
      names: see `from_torch`.
      flattened: see `from_torch`.
    """
    arrays, left_out = arrays_of(state_dict), ()
    own_layers, shapes = _own_layers(task, inputs)
    if not names:
        leaves = {f"{layer}/{name}": leaf.shape for layer, of_layer in own_layers.items()
                  for name, (_, leaf) in of_layer.items()}  # fmt: skip
        arrays, left_out = vit_names.renamed(arrays, leaves, inputs.shape[-1])
    torch_layers = torch_layers_of(arrays)
    turned = layouts(task, shapes, inputs)
    for layer, sizes in (flattened or {}).items():
        require_name("layer in flattened", layer, own_layers)
        labels = (*range(1, len(sizes)), CHANNELS)
        layout = Layout(labels, tuple(sizes)) if sizes else None
        leaves = own_layers[layer]
        for path, _ in [leaves["kernel"]] if "kernel" in leaves else leaves.values():
            turned.pop(path, None)
            turned |= {} if layout is None else {path: layout}
    pairs = paired(torch_layers, own_layers, names or {})
    values: dict[str, np.ndarray] = {}
    unused, misfits = [*left_out], []
    for layer, own in pairs.items():
        prefix = f"{layer}." if layer else ""
        for name, value in joined(torch_layers[layer]).items():
            leaf = next((r for r in ROLES.get(name, (name,)) if own and r in own_layers[own]), None)
            if own is None or leaf is None:
                unused.append(prefix + name)
                continue
            path, like = own_layers[own][leaf]
            array = _turned(value, leaf, like, turned.get(path), f"{prefix}{name}", own)
            if array.shape != like.shape:
                misfits.append(f"{prefix}{name} {list(value.shape)} for {path} {list(like.shape)}")
            else:
                array = np.ascontiguousarray(array).astype(like.dtype)
            values[path] = array
    every = [path for leaves in own_layers.values() for path, _ in leaves.values()]
    missing = tuple(path for path in every if path not in values)
    return Converted(values, missing, tuple(unused), tuple(misfits))


def _own_layers(task: Task, inputs: jax.ShapeDtypeStruct) -> tuple[Layers, Tree]:
    """Return leaves by layer and name, in creation order, and the model."""
    order: list[str] = []

    def noted(key):
        model = task.init(key, jnp.zeros(inputs.shape, inputs.dtype))
        order.extend(paths_in_order(model))
        return model

    model = jax.eval_shape(noted, jax.random.key(0))
    shapes = trees.by_path(model)
    layers: Layers = {}
    for path in order:
        layer, _, name = path.partition("/")[2].rpartition("/")
        layers.setdefault(layer, {})[name] = (path, shapes[path])
    return layers, model


def _turned(
    value: np.ndarray, leaf: str, like: Any, layout: Layout | None, name: str, layer: str
) -> np.ndarray:
    """Permute a value's axes to a leaf's, or to another shape if it does not fit."""
    if layout == TRANSPOSED and leaf == "kernel":
        raise InputError(f"{name}: from_torch converts no transposed convolutions.")
    if leaf in ("kernel", "recurrent"):
        outputs = 0
        conv = value.ndim > 2
        value = np.moveaxis(value, 1, -1) if conv else value
        value = np.moveaxis(value, outputs, -1)
        if conv or layout is None:
            return _without_ones(value, like.shape)
    elif layout is None or like.ndim != 1:
        if leaf == "table" and np.any(value[:1]):
            warnings.warn(
                f"{name}: {layer} takes id 0 for padding, with zeros for its embedding, and row 0 "
                "of the given table is not zero.",
                stacklevel=4,
            )
        return value
    if layout == UNCLEAR:
        raise InputError(
            f"The order in which {layer} gets the numbers of a flattened image is unknown: give "
            f"flattened={{{layer!r}: (height, width, channels)}}, or () if no image was flattened."
        )
    if math.prod(layout.sizes) != len(value):
        return value
    return layout.from_torch(value)


def _without_ones(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Drop axes of length 1 of kernels over time, and reshape a kernel of patches to a matrix."""

    def wide(sizes):
        return [n for n in sizes if n > 1]

    patches = len(shape) == 2 and value.ndim > 2
    same = value.size == math.prod(shape) and (patches or wide(value.shape) == wide(shape))
    return value.reshape(shape) if same else value
