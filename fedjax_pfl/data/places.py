"""Where the files of a data set are searched, the error if they are missing, and NPZ files."""

import contextlib
import math
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fedjax_pfl.data.files import require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def folders(name: str, data_dir: Path | None) -> list[Path]:
    """Where the files of data set `name` may be: `data_dir`/`name`, then `data_dir` itself."""
    return [] if data_dir is None else [data_dir / name, data_dir]


def not_found(name: str, looked: Iterable[Path], ways: Iterable[str]) -> InputError:
    """An `InputError` that says where a data set was looked for and how to provide it."""
    places = ", ".join(map(str, looked)) or "nowhere, as data_dir is not set"
    return InputError(
        f"Data set {name!r} was not found (looked in: {places}). To provide it, "
        f"{', '.join(ways)}, give your own arrays as npz:PATH, or take 'digits', which needs no "
        "file."
    )


def read_npz(
    path: Path, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Reads the named arrays of an NPZ file; nothing is ever unpickled.

    Args:
      path: the file.
      required, optional: names of arrays; others are not read.

    Raises:
      InputError: no such file, not an NPZ file, damaged, holding objects, arrays that don't fit
        into memory, or an array is missing.
    """
    with _opened(path) as archive:
        members = _members(path, archive)
        missing = [key for key in required if key not in members]
        if missing:
            found = ", ".join([*members][:20]) or "none"
            raise InputError(f"{path} lacks {', '.join(missing)}; arrays found: {found}.")
        keys = [key for key in dict.fromkeys((*required, *optional)) if key in members]
        size = sum(members[key].file_size for key in keys)
        require_memory(f"{path} unpacked", size)
        return {key: _read(path, archive, key, members[key]) for key in keys}


def npz_names(path: Path) -> list[str]:
    """Names of the arrays of an NPZ file.

    Raises:
      InputError: as `read_npz`.
    """
    with _opened(path) as archive:
        return list(_members(path, archive))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    if not os.path.exists(path):
        raise InputError(f"No file {path}: give the path of an existing NPZ file.")
    require_file(path)
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise InputError(f"{path} isn't an NPZ file (written with numpy.savez).")
            with zipfile.ZipFile(file) as archive:
                yield archive
    except InputError:
        raise
    except Exception as error:  # damaged members lead zipfile and its codecs to anything
        raise _unreadable(path, error) from error


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members = {}
    for info in archive.infolist():
        key = info.filename.removesuffix(".npy")
        if key in members:
            raise _unreadable(path, f"it holds {key!r} twice")
        members[key] = info
    return members


def _read(path: Path, archive: zipfile.ZipFile, key: str, info: zipfile.ZipInfo) -> np.ndarray:
    if not info.filename.endswith(".npy"):
        raise _unreadable(path, f"its member {key!r} is none")
    with archive.open(info) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 wrote
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise _unreadable(path, f"its array {key!r} is of version {version}")
        shape, _, dtype = _HEADERS[version](file)
        head = file.tell()
    if dtype.hasobject:
        raise _unreadable(path, f"its array {key!r} holds Python objects")
    plain = dtype.subdtype is None and all(type(n) is int and n >= 0 for n in shape)
    if not plain or head + math.prod(shape) * dtype.itemsize != info.file_size:
        raise _unreadable(path, f"the header of its array {key!r} isn't that of what follows it")
    with archive.open(info) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.lib.format.read_array(file, allow_pickle=False)


def _unreadable(path: Path, why) -> InputError:
    why = str(why).strip() or type(why).__name__
    return InputError(f"{path} can't be read as an NPZ file of plain arrays: {why[:300]}")
