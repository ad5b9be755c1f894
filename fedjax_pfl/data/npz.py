"""NPZ files of plain arrays; nothing is ever unpickled."""

import contextlib
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from fedjax_pfl.data.files import reading, require_file, unreadable
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError

_KIND = "an NPZ file of plain arrays"


def save_arrays(file: IO[bytes], arrays: Mapping[str, np.ndarray], compressed: bool = True) -> None:
    """Write arrays by name in NumPy's NPZ format."""
    # To a type checker, any of the names could be an option of NumPy's.
    save: Callable[..., None] = np.savez_compressed if compressed else np.savez
    save(file, **arrays)


def read_npz(
    path: Path, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Return the named arrays of an NPZ file.

    Args:
      path: the file.
      required: names of arrays that must be there.
      optional: names of arrays that may be there. Others are not read.

    Raises:
      InputError: no such file, not an NPZ file, damaged, an array of Python objects, arrays that
        don't fit into memory, or a required array is missing.
    """
    with _opened(path) as (archive, members):
        missing = [key for key in required if key not in members]
        if missing:
            held = ", ".join([*members][:20]) or "none"
            raise InputError(f"{path} lacks {', '.join(missing)}; arrays found: {held}.")
        keys = [key for key in dict.fromkeys((*required, *optional)) if key in members]
        require_memory(f"{path} unpacked", sum(members[key].file_size for key in keys))
        return {key: _read(archive, members[key]) for key in keys}


def npz_names(path: Path) -> list[str]:
    """Return the names of the arrays of an NPZ file; raises as `read_npz` does."""
    with _opened(path) as (_, members):
        return list(members)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of an NPZ file; raises as `read_npz` does."""
    return read_npz(path, npz_names(path))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Return the archive and its members by array name."""
    if not os.path.exists(path):
        raise InputError(f"No file {path}: give the path of an existing NPZ file.")
    require_file(path)
    with reading(path, _KIND), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if len(members) < len(archive.infolist()):
            raise unreadable(path, _KIND, "two arrays have the same name")
        yield archive, members


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 wrote
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise ValueError(f"{info.filename!r} holds more than its header announces")
    return array
