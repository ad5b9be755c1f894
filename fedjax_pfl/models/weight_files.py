"""Files of weights: NPZ and safetensors. Reading them runs no code."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors

from fedjax_pfl.data.files import as_path, read_bytes, reading
from fedjax_pfl.data.npz import read_arrays
from fedjax_pfl.models.base_file import SEEN
from fedjax_pfl.utils.errors import InputError, cut, require, warn

TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
OF_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")


def read_weights(source: str | Path) -> tuple[dict[str, np.ndarray], bool]:
    """Return the arrays of a file by name, and whether it is a run's file of models.

    Raises:
      InputError: no such file, a damaged one, or another ending.
    """
    path = as_path("initial_model", source)
    if path.suffix == ".safetensors":
        arrays = read_safetensors(path)
        return {name: array for name, array in arrays.items() if name != SEEN}, False
    if path.suffix in OF_PICKLES:
        raise InputError(
            f"initial_model can't be {str(source)!r}, as reading a pickle runs code: write "
            "safetensors.torch.save_file(module.state_dict(), 'NAME.safetensors') and give that."
        )
    allowed = "a file NAME.npz or NAME.safetensors"
    require(path.suffix == ".npz", "initial_model", str(source), allowed)
    arrays = read_arrays(path)
    of_a_run = any(name.startswith("axes/") for name in arrays)
    return _of_a_run(path, arrays) if of_a_run else arrays, of_a_run


def _of_a_run(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the global model of the first seed in a run's file of final models."""
    shared = {name for name in ("global", "backbone") if str(arrays.get(f"axes/{name}")) == "seed"}
    if "global" not in shared:
        raise InputError(f"{path} holds models of single clients, and no global one to begin with.")
    for name, value in arrays.items():
        seeds = value.ndim > 0 or name.partition("/")[0] not in shared
        require(seeds, f"{name!r} in {path}", "a single number", "one model for each seed")
    parts = ((name.partition("/"), value) for name, value in arrays.items())
    return of_first_seed(
        {inner: value for (model, _, inner), value in parts if model in shared and value.size}
    )


def of_first_seed(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first of models [seeds, ...], with a warning if there are several."""
    count = max(map(len, arrays.values()), default=1)
    if count > 1:
        warn(
            f"initial_model takes the first seed's of {count} global models: another is "
            "result.model(seed=SEED), or leaf[k] of the leaves of pfl.load_models(FILE)['global']."
        )
    return {name: leaf[0] for name, leaf in arrays.items()}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file, in the order of their names: "2" before "10".

    The library returns them in no order.
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
