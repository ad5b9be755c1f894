"""Initial values of a network: a tree, or an NPZ or safetensors file, matched by path.

Reading never runs code. A path is written with slashes or dots, with or without its collection's
name for parameters: "params/conv_0/kernel", "conv_0.kernel". Values under PyTorch's names are
converted, see `torch_weights`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from fedjax_pfl.data.files import as_path, reading, require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.npz import npz_names, read_npz
from fedjax_pfl.models.flattening import Layout, layouts
from fedjax_pfl.models.task import Task
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
    """What of a network and of given values belongs together.

    Attributes:
      found: paths of the leaves that begin with given values.
      drawn: of those that begin with values drawn from the seed.
      misfits: shapes, in words, of those drawn for another shape than was given.
      unused: names of given values that the network has no leaf for.
      unclear: paths of given kernels whose shape does not tell the order of their axes, or of a
        flattened image's: Flax's order is assumed.
      numbers: how many numbers were given, of how many.
    """

    found: tuple[str, ...]
    drawn: tuple[str, ...]
    misfits: tuple[str, ...]
    unused: tuple[str, ...]
    unclear: tuple[str, ...]
    numbers: tuple[int, int]

    def __str__(self) -> str:
        given, count = self.numbers
        leaves = len(self.found) + len(self.drawn)
        messages = [f"{len(self.found)} of {leaves} leaves given ({given:,} of {count:,} numbers)"]
        misfits = {one.partition(" ")[0] for one in self.misfits}
        absent = [path for path in self.drawn if path not in misfits]
        for what, names in (
            ("drawn, as none is given", absent),
            ("drawn, as the shapes differ", self.misfits),
            ("given, but not in the network", self.unused),
            ("taken in Flax's order, channels last, which shapes can't confirm", self.unclear),
        ):
            if names:
                more = f" and {len(names) - 6} more" if len(names) > 6 else ""
                messages.append(f"{what}: {', '.join(names[:6])}{more}")
        return "; ".join(messages)


def initial_values(
    given: Any, task: Task, model: Tree, inputs: jax.ShapeDtypeStruct
) -> tuple[dict[str, np.ndarray], Match]:
    """The values for a network's leaves by path, and what matched.

    Args:
      given: a tree or a file.
      task: of the network.
      model: shapes of its model, fixed leaves included.
      inputs: shape of a batch.

    Raises:
      InputError: a value or a file that can't be read, or values that don't fit.
    """
    arrays, of_a_run = read(given)
    if looks_like_torch(arrays, model):
        found = converted(arrays, task, inputs)
        return matched(found.values, model, unused=found.unused)
    flattened = None if of_a_run else layouts(task, model, inputs)
    return matched(arrays, model, flattened)


def read(given: Any) -> tuple[dict[str, Any], bool]:
    """The arrays of a tree or a file by their names there, and whether a run here saved the file.

    Raises:
      InputError: no such file, a damaged one, or a value that is no tree of arrays.
    """
    if isinstance(given, str | Path):
        path = as_path("initial_model", given)
        if path.suffix == ".safetensors":
            return read_safetensors(path), False
        allowed = "a file NAME.npz or NAME.safetensors"
        require(path.suffix == ".npz", "initial_model", str(given), allowed)
        names = npz_names(path)
        arrays = read_npz(path, names)
        of_a_run = any(name.startswith("axes/") for name in names)
        return _of_a_run(path, arrays) if of_a_run else arrays, of_a_run
    allowed = "a model (a dict of arrays), or an NPZ or safetensors file"
    filled = isinstance(given, Mapping) and len(given) > 0
    require(filled, "initial_model", type(given).__name__, allowed)
    flat, _ = jax.tree_util.tree_flatten_with_path(given)
    for path, leaf in flat:
        numeric = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        name = f"initial_model at {trees.path_name(path)!r}"
        require(numeric, name, type(leaf).__name__, "an array")
    return {trees.path_name(path): leaf for path, leaf in flat}, False


def _of_a_run(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The global model of the first seed in a run's file of final models.

    Raises:
      InputError: the run has no global model.
    """
    shared = {name for name in ("global", "backbone") if str(arrays.get(f"axes/{name}")) == "seed"}
    if "global" not in shared:
        raise InputError(f"{path} holds models of single clients, and no global one to begin with.")
    for name, value in arrays.items():
        seeds = value.ndim > 0 or name.partition("/")[0] not in shared
        require(seeds, f"{name!r} in {path}", "a single number", "one model for each seed")
    parts = ((name.partition("/"), value) for name, value in arrays.items())
    return {inner: value[0] for (model, _, inner), value in parts if model in shared and value.size}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, in the order of their names: "net.2" before "net.10".

    The library gives them in no order, and layers of PyTorch's are matched in theirs.

    Raises:
      InputError: no such file, or one that does not read as its format says.
    """
    require_memory(str(path), require_file(path))
    with reading(path):
        content = path.read_bytes()
    try:
        entries = dict(sorted(safetensors.deserialize(content), key=_by_numbers))
    except (safetensors.SafetensorError, ValueError, OverflowError) as error:
        raise InputError(f"{path} isn't a safetensors file: {cut(str(error), 200)}.") from error
    arrays = {}
    for name, entry in entries.items():
        require(entry["dtype"] in TYPES, f"{cut(name, 100)!r} in {path}", entry["dtype"],
                f"of a type among {', '.join(TYPES)}")  # fmt: skip
        array = np.frombuffer(entry["data"], TYPES[entry["dtype"]])
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def _by_numbers(entry: tuple[str, Any]) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them."""
    parts = re.split(r"(\d+)", entry[0])
    return [(int(part), "") if k % 2 else (0, part) for k, part in enumerate(parts)]


def matched(
    given: Mapping[str, Any],
    model: Tree,
    flattened: Mapping[str, Layout] | None = None,
    unused: Sequence[str] = (),
) -> tuple[dict[str, np.ndarray], Match]:
    """The values for a network's leaves by path, and what matched.

    Args:
      given: arrays by name.
      model: shapes of the network's model, fixed leaves included.
      flattened: layouts of flattened images by the path of a leaf; None where the axes of all
        values are known to be Flax's.
      unused: names of given values that were left out before.

    Raises:
      InputError: a name that stands for two leaves or is given twice, a value that is not finite,
        one with PyTorch's axes, or none that fits.
    """
    leaves = {
        trees.path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]
    }
    values, misfits, unused = {}, {}, list(unused)
    for name, value in given.items():
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
        kept = value.astype(leaves[path].dtype)
        finite = bool(np.isfinite(np.asarray(kept, np.float64)).all())
        require(finite, f"initial_model at {name!r}", "NaN or infinity", f"finite in {kept.dtype}")
        values[path] = kept
    sizes = {path: math.prod(leaf.shape) for path, leaf in leaves.items()}
    unclear = () if flattened is None else [
        path
        for path in values
        if leaves[path].shape == torch_shape(path, leaves[path].shape)
        or (path in flattened and flattened[path].turns_rows)
    ]  # fmt: skip
    match = Match(
        found=tuple(path for path in leaves if path in values),
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
