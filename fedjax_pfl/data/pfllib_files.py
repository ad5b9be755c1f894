"""Folders that PFLlib's `generate_*.py` write: config.json, train/ID.npz, test/ID.npz.

Those NPZ files contain pickled Python objects, which are never loaded. Three lines of Python,
`PFLLIB_EXPORT`, write `ID.plain.npz` with the plain arrays x and y beside each.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.files import read_json
from fedjax_pfl.data.npz import read_npz
from fedjax_pfl.utils.errors import InputError, require_whole

CONFIG = "config.json"
PFLLIB_EXPORT = """\
import numpy as np, pathlib
for f in pathlib.Path({folder!r}).glob("t*/*[0-9].npz"):
    d = np.load(f, allow_pickle=True)["data"].item(); np.savez(f.with_suffix(".plain.npz"), **d)"""


def is_pfllib(folder: Path) -> bool:
    """Return whether a folder has the file names of PFLlib."""
    return (folder / CONFIG).is_file() and (folder / "train").is_dir()


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json, with an integer `num_clients`."""
    path = folder / CONFIG
    config = read_json(path)
    count = require_whole(f"num_clients in {path}", config.get("num_clients"), 1)
    return config | {"num_clients": count}


def read_clients(
    folder: Path, split: str, count: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (name in messages, samples, labels) of each client's "train" or "test" file."""
    more = folder / split / f"{count}.npz"
    if more.exists() or more.with_suffix(".plain.npz").exists():
        raise InputError(
            f"{more.parent} has a file of client {count}, though {CONFIG} counts {count} clients: "
            "is it of another split?"
        )
    for client in range(count):
        path = folder / split / f"{client}.plain.npz"
        if not path.exists():
            raise _missing(path, folder)
        check_export(path.with_name(f"{client}.npz"), path)
        arrays = read_npz(path, ("x", "y"))
        yield f"{split} samples of client {client} in {path}", arrays["x"], arrays["y"]


def check_export(source: Path, export: Path) -> None:
    """Raise `InputError` if a file, which may be gone, was written after its export."""
    if source.is_file() and source.stat().st_mtime_ns > export.stat().st_mtime_ns:
        raise InputError(
            f"{source} is newer than its export {export}: export it again, or `touch` the export "
            "if only copying made it newer."
        )


def _missing(path: Path, folder: Path) -> InputError:
    if path.with_name(path.name.replace(".plain", "")).is_file():
        return InputError(
            f"The files in {folder} hold pickled objects, which are never loaded here. If you "
            "trust them, export plain arrays with these three lines of Python, and try again:",
            script=PFLLIB_EXPORT.format(folder=str(folder)),
        )
    return InputError(f"No file {path}, though config.json counts on it: is the split complete?")
