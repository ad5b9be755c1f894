"""NPZ files of models, readable without running code.

A file holds one array for each leaf, under its path: `NAME/COLLECTION/LAYER/LEAF`, such as
`personalized/params/fc_0/kernel`. The leading axes are stored under
`axes/NAME`: "seed,client", or "seed" for a model that all clients share and that is stored once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_pfl.data.atomic_files import atomic_write
from fedjax_pfl.data.files import as_path
from fedjax_pfl.data.npz import npz_names, read_npz
from fedjax_pfl.results.result import Result
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Tree

AXES = "axes"


@checked
def save_models(path: str | Path, models: Mapping[str, Tree | Broadcast] | Result) -> None:
    """Write models to an NPZ file.

    Args:
      path: a name that ends in ".npz"; an existing file is replaced.
      models: a result without a sweep, or its models by name, as `Result.final.models()` gives
        them: leaves [seed, client, ...], or a `Broadcast` model with leaves [seed, ...]. Floating
        types that NumPy lacks, such as bfloat16, are stored as float32.

    Raises:
      InputError: the path has another ending, a model has the name "axes", or a result has no
        models or those of several settings.
      OutputError: it can't be written; an existing file stays unchanged.
    """
    path = Path(path)
    require(path.suffix == ".npz", "Path of a model file", str(path), "a name that ends in .npz")
    named: Any = models
    if isinstance(models, Result):
        count = models.num_settings
        require(count == 1, "number of settings", count, "1, as files of models have no axis of it")
        named = models._place(None, None, 0)[0].models()
    arrays = {}
    for name, model in named.items():
        require(name != AXES and "/" not in name, "Name of a model", name, "not 'axes', without /")
        is_shared = isinstance(model, Broadcast)
        arrays[f"{AXES}/{name}"] = np.array("seed" if is_shared else "seed,client")
        leaves = jax.tree_util.tree_flatten_with_path(model.model if is_shared else model)[0]
        for key_path, leaf in leaves:
            arrays[f"{name}/{trees.path_name(key_path)}"] = _plain(np.asarray(leaf))
    # Weights don't compress: writing them uncompressed takes a tenth of the time.
    with atomic_write(path) as part:
        np.savez(part, **arrays)


@checked
def load_models(path: str | Path) -> dict[str, Tree]:
    """Read models from a file of `save_models`.

    Returns:
      Nested dicts of arrays by name of the model; lists and tuples come back as dicts with the keys
      "0", "1", ... `model_axes` returns the leading axes of leaves.

    Raises:
      InputError: no such file, or not one of models.
    """
    arrays = _arrays(path)
    axes = _axes(path, arrays)
    models: dict[str, Tree] = {name: {} for name in axes}
    leading = {}
    for key, leaf in arrays.items():
        *parents, last = key.split("/")
        if parents[0] == AXES:
            continue
        names = axes[parents[0]]
        sizes = dict(zip(names, leaf.shape, strict=False))
        if leaf.dtype.kind not in "biufc" or len(sizes) < len(names):
            raise _damaged(path, f"{key!r} holds no numbers for each {' and '.join(names)}")
        if any(leading.setdefault(axis, size) != size for axis, size in sizes.items()):
            raise _damaged(path, f"{key!r} holds another number of seeds or clients")
        node = models
        for part in parents:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise _damaged(path, f"{key!r} lies inside another array")
        if last in node:
            raise _damaged(path, f"{key!r} lies where other arrays are")
        node[last] = leaf
    return models


def model_axes(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Return each model's leading axes: ("seed", "client") or, if shared, ("seed",).

    Raises:
      InputError: no such file, or not one of models.
    """
    return _axes(path, _arrays(path, f"{AXES}/"))


def _axes(path: str | Path, arrays: dict[str, np.ndarray]) -> dict[str, tuple[str, ...]]:
    prefix, axes = f"{AXES}/", {}
    for key, text in arrays.items():
        if key.startswith(prefix):
            if text.dtype.kind != "U" or text.shape or not np.isin(text, ("seed", "seed,client")):
                raise _damaged(path, f"{key!r} must be 'seed' or 'seed,client'")
            axes[key.removeprefix(prefix)] = tuple(str(text).split(","))
    return axes


def _arrays(path: str | Path, beginning: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of a file of models whose names have a prefix."""
    path = as_path("Path of a model file", path)
    keys = npz_names(path)
    named = {key.removeprefix(f"{AXES}/") for key in keys if key.startswith(f"{AXES}/")}
    strange = [key for key in keys if key.partition("/")[0] not in (*named, AXES)]
    if not named or strange or any(not name or "/" in name for name in named):
        raise _damaged(path, "its arrays don't name their axes")
    whole = [key for key in keys if key.startswith(beginning)]
    if any("" in key.split("/") or "/" not in key for key in whole):
        raise _damaged(path, "an array has no name of its own")
    return read_npz(path, whole)


def _damaged(path: str | Path, why: str) -> InputError:
    return InputError(f"{path} isn't a file of models: {why}.")


def _plain(leaf: np.ndarray) -> np.ndarray:
    """Return the leaf in a type that NumPy's file format supports."""
    return leaf.astype(np.float32) if leaf.dtype.kind == "V" else leaf
