"""Files of a saved result, written atomically and verified when read.

`result.json` has the numbers and words, and a digest of everything; `result.npz` has the arrays,
those of a dict under DICT:NAME.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin

import numpy as np

from fedjax_pfl._version import __version__
from fedjax_pfl.data.atomic_files import atomic_write, require_version, writing
from fedjax_pfl.data.files import read_json
from fedjax_pfl.data.npz import read_arrays
from fedjax_pfl.results.result_fields import ResultFields
from fedjax_pfl.utils.conversions import defined_at
from fedjax_pfl.utils.errors import InputError, shown

PLAIN, ARRAYS = "result.json", "result.npz"
GROUPS = tuple(f.name for f in fields(ResultFields) if f.type == dict[str, np.ndarray])
BY_RUN = [name for name in GROUPS if name != "settings"]  # dicts of arrays [S, H, ...]
TUPLES = tuple(f.name for f in fields(ResultFields) if get_origin(f.type) is tuple)
DIGEST = "digest"
OLDER = ("0.4",)  # versions whose results can be read


def save(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the fields of a result.

    Raises:
      InputError: the folder holds one of the two files already.
      OutputError: a file can't be written; neither file remains.
    """
    there = [name for name in (PLAIN, ARRAYS) if (folder / name).exists()]
    if there:
        raise InputError(f"{folder} has a {there[0]} already; save to another folder.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    arrays, plain = {}, {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif name in GROUPS:
            arrays |= {f"{name}:{key}": item for key, item in value.items()}
        else:
            plain[name] = value
    # Files know no bfloat16.
    arrays = {
        name: value.astype(np.float32) if value.dtype.kind == "V" else value
        for name, value in arrays.items()
    }
    plain = json.loads(json.dumps(plain, default=_plain))
    plain["version"] = __version__
    plain[DIGEST] = digest(plain, arrays)
    with atomic_write(folder / ARRAYS) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)
    try:
        with atomic_write(folder / PLAIN) as part:
            part.write_text(json.dumps(plain, indent=2) + "\n")
    except BaseException:
        (folder / ARRAYS).unlink(missing_ok=True)
        raise


def load(folder: Path, needed: Mapping[str, bool]) -> dict[str, Any]:
    """Read the files that `save` wrote.

    Args:
      folder: with the two files.
      needed: names of the fields, and whether each is needed.

    Raises:
      InputError: no result there, or one that is damaged or of another version.
    """
    try:
        plain, arrays = read_json(folder / PLAIN), read_arrays(folder / ARRAYS)
    except InputError as error:
        known = any(os.path.isfile(folder / name) for name in (PLAIN, ARRAYS))
        more = f" {remedy(folder)}" if known else ""
        raise InputError(f"No saved result can be read from {folder}: {error}{more}") from error
    require_version(folder / PLAIN, plain.get("version"), remedy(folder), OLDER)
    stored = plain.pop(DIGEST, None)
    if stored is None:
        raise damaged(folder / PLAIN, "it has no digest")
    if stored != digest(plain, arrays):
        raise damaged(folder / PLAIN, f"it or {ARRAYS} was changed after it was written")
    del plain["version"]
    values: dict[str, Any] = plain | {group: {} for group in GROUPS}
    for name, value in arrays.items():
        group, colon, key = name.partition(":")
        if colon and group in GROUPS:
            values[group][key] = value
        elif name in GROUPS or name in plain:
            raise damaged(folder / ARRAYS, f"it can't hold an array {shown(name)}")
        else:
            values[name] = value
    missing = [name for name, always in needed.items() if always and name not in values]
    other = [name for name in values if name not in needed]
    for names, what in ((missing, "lacks"), (other, "has the unknown")):
        if names:
            raise damaged(
                folder / PLAIN, f"the result {what} {names[0]!r}, perhaps as another version's"
            )
    return values | {name: _tuple(values[name]) for name in TUPLES if name in values}


def _tuple(value: Any) -> Any:
    """Convert lists of JSON, also nested ones, to tuples."""
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def damaged(path: Path, what: str) -> InputError:
    """Return an `InputError` for a file of a finished run, with the cause and the remedy."""
    return InputError(f"{path} is damaged: {what}. {remedy(path.parent)}")


def remedy(folder: Path) -> str:
    """Return the remedy for an unreadable algorithm folder."""
    return f"Delete the folder {folder} and give its run's command again."


def digest(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of names, values, types, shapes and bytes."""
    total = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]  # `np.ascontiguousarray` would make shape () the shape (1,)
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def _plain(value) -> float | str:
    """Convert values without a JSON type: NumPy's numbers, and functions to their names."""
    if callable(value):
        return ".".join(defined_at(value))
    return float(value)
