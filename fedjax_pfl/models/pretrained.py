"""Pretrained values of a network: a tree, or an NPZ or safetensors file.

They are matched by path, with slashes or dots; the collection's name "params" is optional:
"params/conv_0/kernel", "conv_0.kernel". Values with PyTorch's names are converted, see
`torch_weights`. Values must fit the whole network, unless a part of it was asked for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fedjax_pfl.data.files import as_path
from fedjax_pfl.models.adapter_layers import A
from fedjax_pfl.models.base_file import WITHOUT, read_facts
from fedjax_pfl.models.task import Task, as_task
from fedjax_pfl.models.torch_layers import HINT, as_array, several
from fedjax_pfl.models.torch_weights import (
    Given,
    behind_images,
    converted,
    convertible_layers,
    layers_of,
    looks_like_torch,
    torch_shape,
)
from fedjax_pfl.models.weight_files import of_first_seed, read_weights
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, require, require_name, warn
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Tree

INITIAL = "initial_model"  # the option's name in error messages
COMMANDS = "; in commands, --init_name=THERE=HERE and --init_partial."


@dataclass(frozen=True)
class Match:
    """How given values match a network.

    Attributes:
      loaded: paths of the leaves with given values.
      drawn: paths of the leaves that are drawn from the seed.
      misfits: descriptions of leaves that are drawn because of another shape.
      unused: names of given values without a leaf.
      unclear: paths of kernels whose shape doesn't determine the order of their axes, or of a
        flattened image: Flax's order is assumed.
      numbers: (loaded parameters, all parameters).
      origin: what the file says about its training, such as "trained on 300 samples of digits".
    """

    loaded: tuple[str, ...]
    drawn: tuple[str, ...]
    misfits: tuple[str, ...]
    unused: tuple[str, ...]
    unclear: tuple[str, ...]
    numbers: tuple[int, int]
    origin: str = ""

    def __str__(self) -> str:
        part, count = self.numbers
        leaves = len(self.loaded) + len(self.drawn)
        messages = [f"{len(self.loaded)} of {leaves} leaves given ({part:,} of {count:,} numbers)"]
        absent = [
            path for path in self.drawn if not any(f"{path} [" in one for one in self.misfits)
        ]
        for what, names in (
            ("drawn, as none is given", absent),
            ("drawn, as the shapes differ", self.misfits),
            ("given, but not in the network", self.unused),
            ("taken in Flax's order, channels last, which shapes can't confirm", self.unclear),
        ):
            if names:
                messages.append(f"{what}: {several(names)}")
        messages += [self.origin] if self.origin else []
        return "; ".join(messages)


@checked
def from_torch(
    state_dict: Mapping[str, Any],
    model: Any,
    input_shape: Sequence[int],
    *,
    names: Mapping[str, str] | None = None,
    flattened: Mapping[str, Sequence[int]] | None = None,
    partial: bool = False,
    input_dtype: str = "float32",
) -> Tree:
    """Convert the `state_dict` of a PyTorch module to a model of a network.

    Layers are matched by `names`, by tables of PFLlib's and torchvision's networks and of timm's
    and Hugging Face's vision transformers, by equal names (dots for slashes), and otherwise in
    their order among those of their kind: convolutions, matrices (linear layers and embeddings),
    normalization and recurrent layers. The axes of kernels are transposed, and the inputs of a
    dense layer after a flattened image permuted. Prefixes of wrappers, such as "module.", and
    counters of batches are left out.

    Args:
      state_dict: PyTorch tensors or NumPy arrays by name, as `module.state_dict()` gives them.
      model: a linen or NNX module, or a `Task`, of the same layers.
      input_shape: of one sample, channels last, such as `(32, 32, 3)`.
      names: the network's layer for a PyTorch layer, such as `{"features.0": "conv_0"}`.
      flattened: (height, width, channels) of the image before a layer, by the name of the network's
        layer; () for a layer whose inputs have the same order in both. The library's own networks
        need none.
      partial: leave out what only one of the two has or has in another shape, with a warning.
      input_dtype: type of the samples; `"int32"` for token ids.

    Returns:
      A model, `{"params": ..., "batch_stats": ...}`, of NumPy arrays, with the leaves that have
      values, for `federate(initial_model=...)` and `network.apply`.

    Raises:
      InputError: a layer or leaf that only one of the two has, another shape, or a dense layer with
        an unknown order of inputs.
    """
    task = as_task(model)
    inputs = jax.ShapeDtypeStruct((2, *input_shape), jnp.dtype(input_dtype))
    own_layers = convertible_layers(task, inputs)
    leaves = dict(sorted(leaf for layer in own_layers.values() for leaf in layer.values()))
    options = {"names": names or {}, "flattened": flattened or {}, "ordered": True}
    given = converted(state_dict, task, inputs, own_layers, **options)
    values, match = _matched("state_dict", given, leaves, partial)
    if len(values) < len(leaves) or given.unused:
        warn(f"A part of the state_dict was taken: {match}.")
    return traverse_util.unflatten_dict(values, sep="/")


def initial_values(
    source: Any,
    task: Task,
    model: Tree,
    inputs: jax.ShapeDtypeStruct,
    names: Mapping[str, str],
    partial: bool,
) -> tuple[dict[str, np.ndarray], Match]:
    """Return the initial values of a network's leaves by path, and how they match.

    Args:
      source: a tree or a file.
      task: the task of the network.
      model: shapes of its model, frozen leaves included.
      inputs: shape of a batch.
      names: the network's layer by the name of a given one.
      partial: whether a part of the values or of the leaves is enough.

    Raises:
      InputError: the source can't be read, or doesn't fit.
    """
    leaves = trees.by_path(model)
    arrays, of_a_run = _arrays(source)
    facts, _ = facts_of(source)
    if looks_like_torch(arrays, leaves):
        ordered = not (isinstance(source, str | Path) and str(source).endswith(".safetensors"))
        own_layers = convertible_layers(task, inputs)
        options = {"names": names, "flattened": {}, "ordered": ordered}
        given = converted(arrays, task, inputs, own_layers, **options)
    else:
        sure = of_a_run or bool(facts)
        images = {} if sure else behind_images(task, layers_of(task, inputs), inputs)
        given = _by_path(_renamed(arrays, names), leaves, sure, images)
    return _matched(INITIAL, given, leaves, partial, facts)


def facts_of(source: Any) -> tuple[dict[str, Any], np.ndarray]:
    """Return what a file says about its training, see `read_facts`; ({}, []) for anything else."""
    if isinstance(source, str | Path) and str(source).endswith(".safetensors"):
        return read_facts(as_path(INITIAL, source))
    return {}, np.zeros(0, np.uint64)


def _arrays(source: Any) -> tuple[dict[str, Any], bool]:
    """Return the arrays of a tree or a file by name, and whether they are a run's."""
    if isinstance(source, str | Path):
        return read_weights(source)
    if isinstance(source, Broadcast):  # result.final.models()["global"], for each seed
        return of_first_seed(trees.by_path(source.model)), True
    allowed = "a model (a dict of arrays), or an NPZ or safetensors file"
    filled = isinstance(source, Mapping) and len(source) > 0
    require(filled, INITIAL, type(source).__name__, allowed)
    arrays = trees.by_path(source)
    for name, leaf in arrays.items():
        numeric = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        require(numeric, f"initial_model at {name!r}", type(leaf).__name__, "an array")
    return arrays, False


def _renamed(arrays: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return arrays with other names of their layers."""
    layers = {name: _layer(name) for name in arrays}
    for layer in names:
        require_name("layer of initial_model", layer, sorted({*layers.values()}))
    return {
        f"{names[layer]}/{name[len(layer) + 1 :]}" if (layer := layers[name]) in names else name: x
        for name, x in arrays.items()
    }


def _by_path(
    arrays: Mapping[str, Any], leaves: Mapping[str, Any], sure: bool, images: Mapping[str, Any]
) -> Given:
    """Return values under the network's own names.

    Args:
      arrays: by name.
      leaves: shapes of the network's leaves by path.
      sure: whether the axes of all values are known to be Flax's.
      images: layers that may take a flattened image.
    """
    values, misfits, unused, unclear = {}, {}, [], []
    for name, value in arrays.items():
        path = name.replace(".", "/")
        path = path if path in leaves else f"params/{path}"
        if path.endswith(f"/{A}"):
            raise InputError(
                f"initial_model holds adapters ({name}) apart from their kernels, which "
                "result.model() joins."
            )
        if path not in leaves:
            unused.append(name)
            continue
        require(path not in values and path not in misfits, INITIAL, name, "given once")
        value, shape = as_array(f"initial_model at {name!r}", value), leaves[path].shape
        turned = None if sure else torch_shape(path, shape)
        if value.shape == shape:
            values[path] = value
            if turned == shape or _layer(path).partition("/")[2] in images:
                unclear.append(path)
        elif value.shape == turned:
            raise InputError(
                f"initial_model at {name!r} has the shape {list(value.shape)}, PyTorch's order "
                f"of axes, and the network's is {list(shape)}: give PyTorch's state_dict under its "
                "own names, which is converted, or what pfl.models.from_torch makes of it."
            )
        elif value.ndim > len(shape) and value.shape[value.ndim - len(shape) :] == shape:
            raise InputError(
                f"initial_model at {name!r} has the shape {list(value.shape)} and the network's is "
                f"{list(shape)}: of models of several seeds or clients, give one, such as "
                "result.model(client)."
            )
        else:
            misfits[path] = f"{path} {list(value.shape)} for {list(shape)}"
    return Given(values, misfits, tuple(unused), tuple(unclear))


def _layer(name: str) -> str:
    """Return the layer of a leaf's name."""
    return name[: max(name.rfind("/"), name.rfind("."), 0)]


def _matched(
    what: str,
    given: Given,
    leaves: Mapping[str, Any],
    partial: bool,
    facts: Mapping[str, Any] | None = None,
) -> tuple[dict[str, np.ndarray], Match]:
    """Return values in the types of a network's leaves, and how they match.

    Args:
      what: name of what was given.
      given: values for the leaves.
      leaves: shapes of the network's leaves by path.
      partial: whether a part of the values or of the leaves is enough.
      facts: what a file says about its training.

    Raises:
      InputError: values that aren't finite, or a part that was not asked for, or nothing that fits.
    """
    facts = facts or {}
    values = {}
    for path, value in given.values.items():
        quantized = value.dtype.kind in "iu" and jnp.issubdtype(leaves[path].dtype, jnp.floating)
        require(not quantized, f"{what} at {path!r}", value.dtype.name, "floating-point numbers")
        values[path] = np.ascontiguousarray(value).astype(leaves[path].dtype)
        finite = bool(np.isfinite(np.asarray(values[path], np.float64)).all())
        require(finite, f"{what} at {path!r}", "NaN or infinity", f"finite in {leaves[path].dtype}")
    sizes = {path: math.prod(leaf.shape) for path, leaf in leaves.items()}
    match = Match(
        loaded=tuple(path for path in leaves if path in values),
        drawn=tuple(path for path in leaves if path not in values),
        misfits=tuple(given.misfits.values()),
        unused=given.unused,
        unclear=given.unclear,
        numbers=(sum(sizes[path] for path in values), sum(sizes.values())),
        origin=str(facts.get("origin", "")),
    )
    if not values:
        known = ", ".join([*leaves][:6])
        raise InputError(f"Nothing of {what} fits the network's {known}: {match}. {HINT}")
    left_out = f"params/{facts.get(WITHOUT)}/"
    missing = [path for path in match.drawn if not path.startswith(left_out)]
    if (missing or given.misfits or given.unused) and not partial:
        raise InputError(
            f"{what} fits the network only in part: {match}. {HINT} partial=True takes that part"
            f"{COMMANDS if what == INITIAL else '.'}"
        )
    return values, match
