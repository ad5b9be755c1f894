"""Pretrained initial values of a network: a tree, or an NPZ or safetensors file, matched by path.

Reading never runs code. Paths have slashes or dots; the collection's name "params" is optional:
"params/conv_0/kernel", "conv_0.kernel". Values with PyTorch's names are converted, see
`torch_weights`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from fedjax_pfl.data.files import as_path, read_bytes, reading
from fedjax_pfl.data.npz import read_arrays
from fedjax_pfl.models.base_file import SEEN, read_facts
from fedjax_pfl.models.flattening import Layout, layouts
from fedjax_pfl.models.task import Task
from fedjax_pfl.models.torch_layers import several
from fedjax_pfl.models.torch_weights import converted, looks_like_torch, torch_shape
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError, cut, require
from fedjax_pfl.utils.typing import Tree

TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


@dataclass(frozen=True)
class Match:
    """How initial values match a network.

    Attributes:
      loaded: paths of the leaves with initial values.
      drawn: paths of the leaves that are drawn from the seed.
      misfits: descriptions of leaves that are drawn because of another shape.
      unused: names of initial values without a leaf.
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
        misfits = {one.partition(" ")[0] for one in self.misfits}
        absent = [path for path in self.drawn if path not in misfits]
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


def initial_values(
    source: Any, task: Task, model: Tree, inputs: jax.ShapeDtypeStruct
) -> tuple[dict[str, np.ndarray], Match]:
    """Return the initial values of a network's leaves by path, and how they match.

    Args:
      source: a tree or a file.
      task: the task of the network.
      model: shapes of its model, frozen leaves included.
      inputs: shape of a batch.
    """
    arrays, of_a_run = read(source)
    if looks_like_torch(arrays, model):
        from_torch = converted(arrays, task, inputs)
        return matched(from_torch.values, model, unused=from_torch.unused)
    facts, _ = facts_of(source)
    flattened = None if of_a_run or facts else layouts(task, model, inputs)
    values, match = matched(arrays, model, flattened)
    return values, replace(match, origin=str(facts.get("origin", "")))


def facts_of(source: Any) -> tuple[dict[str, Any], np.ndarray]:
    """Return what a file says about its training, see `read_facts`; ({}, []) for anything else."""
    if isinstance(source, str | Path) and str(source).endswith(".safetensors"):
        return read_facts(as_path("initial_model", source))
    return {}, np.zeros(0, np.uint64)


def read(source: Any) -> tuple[dict[str, Any], bool]:
    """Return the arrays of a tree or a file by name, and whether the file is a run's.

    Raises:
      InputError: no such file, a damaged one, or a value that isn't a tree of arrays.
    """
    if isinstance(source, str | Path):
        path = as_path("initial_model", source)
        if path.suffix == ".safetensors":
            arrays = read_safetensors(path)
            return {name: array for name, array in arrays.items() if name != SEEN}, False
        allowed = "a file NAME.npz or NAME.safetensors"
        require(path.suffix == ".npz", "initial_model", str(source), allowed)
        arrays = read_arrays(path)
        of_a_run = any(name.startswith("axes/") for name in arrays)
        return _of_a_run(path, arrays) if of_a_run else arrays, of_a_run
    allowed = "a model (a dict of arrays), or an NPZ or safetensors file"
    filled = isinstance(source, Mapping) and len(source) > 0
    require(filled, "initial_model", type(source).__name__, allowed)
    arrays = trees.by_path(source)
    for name, leaf in arrays.items():
        numeric = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        require(numeric, f"initial_model at {name!r}", type(leaf).__name__, "an array")
    return arrays, False


def _of_a_run(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the global model of the first seed in a run's file of final models."""
    shared = {name for name in ("global", "backbone") if str(arrays.get(f"axes/{name}")) == "seed"}
    if "global" not in shared:
        raise InputError(f"{path} holds models of single clients, and no global one to begin with.")
    for name, value in arrays.items():
        seeds = value.ndim > 0 or name.partition("/")[0] not in shared
        require(seeds, f"{name!r} in {path}", "a single number", "one model for each seed")
    parts = ((name.partition("/"), value) for name, value in arrays.items())
    return {inner: value[0] for (model, _, inner), value in parts if model in shared and value.size}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file, in the order of their names: "2" before "10".

    The library returns them in no order, and PyTorch's layers are matched in order.
    """
    content = read_bytes(path)
    with reading(path, "a safetensors file"):
        entries = dict(sorted(safetensors.deserialize(content), key=_by_numbers))
    arrays = {}
    for name, entry in entries.items():
        require(entry["dtype"] in TYPES, f"{cut(name, 100)!r} in {path}", entry["dtype"],
                f"of a type among {', '.join(TYPES)}")  # fmt: skip
        array = np.frombuffer(entry["data"], TYPES[entry["dtype"]])
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def _by_numbers(entry: tuple[str, Any]) -> list[tuple[int, str]]:
    """Return a sort key by the numbers in a name."""
    parts = re.split(r"(\d+)", entry[0])
    return [(int(part), "") if k % 2 else (0, part) for k, part in enumerate(parts)]


def matched(
    arrays: Mapping[str, Any],
    model: Tree,
    flattened: Mapping[str, Layout] | None = None,
    unused: Sequence[str] = (),
) -> tuple[dict[str, np.ndarray], Match]:
    """Return the initial values of a network's leaves by path, and how they match.

    Args:
      arrays: arrays by name.
      model: shapes of the network's model, frozen leaves included.
      flattened: layouts of flattened images by the path of a leaf; None if the axes of all values
        are known to be Flax's.
      unused: names of values that were left out before.

    Raises:
      InputError: two values for a leaf, a value that isn't finite or has PyTorch's axes, or none
        that fits.
    """
    leaves = trees.by_path(model)
    values, misfits, unused = {}, {}, list(unused)
    for name, value in arrays.items():
        path = name.replace(".", "/")
        path = path if path in leaves else f"params/{path}"
        if path not in leaves:
            unused.append(name)
            continue
        require(path not in values and path not in misfits, "initial_model", name, "given once")
        value = np.asarray(value)
        if value.shape != leaves[path].shape:
            if flattened is not None and value.shape == torch_shape(path, leaves[path].shape):
                raise InputError(
                    f"initial_model at {name!r} has the shape {list(value.shape)}, PyTorch's order "
                    f"of axes, and the network's is {list(leaves[path].shape)}: give PyTorch's "
                    "state_dict under its own names, which is converted, or what "
                    "pfl.models.from_torch makes of it."
                )
            misfits[path] = f"{path} {list(value.shape)} for {list(leaves[path].shape)}"
            continue
        numeric = jnp.issubdtype(value.dtype, jnp.number) and value.dtype.kind != "c"
        require(numeric, f"initial_model at {name!r}", value.dtype.name, "numbers")
        values[path] = value.astype(leaves[path].dtype)
        finite = bool(np.isfinite(np.asarray(values[path], np.float64)).all())
        allowed = f"finite in {leaves[path].dtype}"
        require(finite, f"initial_model at {name!r}", "NaN or infinity", allowed)
    sizes = {path: math.prod(leaf.shape) for path, leaf in leaves.items()}
    unclear = () if flattened is None else [
        path
        for path in values
        if leaves[path].shape == torch_shape(path, leaves[path].shape)
        or (path in flattened and flattened[path].turns_rows)
    ]  # fmt: skip
    match = Match(
        loaded=tuple(path for path in leaves if path in values),
        drawn=tuple(path for path in leaves if path not in values),
        misfits=tuple(misfits.values()),
        unused=tuple(unused),
        unclear=tuple(unclear),
        numbers=(sum(sizes[path] for path in values), sum(sizes.values())),
    )
    if not values:
        known = ", ".join([*leaves][:6])
        raise InputError(f"Nothing of initial_model fits the network's {known}: {match}.")
    return values, match
