"""Where files of a data set are looked for, and the sentence when they aren't there."""

import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedjax_pfl.errors import InputError

# Bytes of one file once unpacked, about three times the largest of any data set here; and of all
# arrays of an NPZ file. What is beyond is refused before it fills the memory.
LARGEST_FILE = 1_600_000_000
LARGEST_NPZ = 2**35

# What NumPy and zipfile raise for members that are cut off, encrypted (RuntimeError), packed in an
# unknown way (NotImplementedError), headed by nonsense or by more values than memory holds.
_BAD_NPZ = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    TypeError,
    SyntaxError,
    RuntimeError,
    MemoryError,
    OverflowError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def folders(name: str, data_dir: Path | None) -> list[Path]:
    """Where the files of data set `name` may be: `data_dir`/`name`, then `data_dir` itself."""
    return [] if data_dir is None else [data_dir / name, data_dir]


def not_found(name: str, looked: Iterable[Path], ways: Iterable[str]) -> InputError:
    """An `InputError` that says where a data set was looked for and how to provide it."""
    looked = ", ".join(map(str, looked)) or "nowhere, as data_dir is not set"
    return InputError(
        f"Data set {name!r} was not found (looked in: {looked}). To provide it, "
        f"{', '.join(ways)}, give your own arrays as npz:PATH, or take 'digits', which needs no "
        "file."
    )


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
      InputError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}.") from error


def read_npz(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict:
    """Reads the named arrays of an NPZ file; nothing is ever unpickled.

    Raises:
      InputError: no such file, not an NPZ file, damaged, holding objects, or an array is missing.
    """
    if not path.is_file():
        raise InputError(f"No file {path}: give the path of an existing NPZ file.")
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise InputError(f"{path} isn't an NPZ file (written with numpy.savez).")
            with zipfile.ZipFile(file) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > LARGEST_NPZ:
                raise InputError(
                    f"{path} holds {size / 2**30:.0f} GiB unpacked, more than "
                    f"{LARGEST_NPZ / 2**30:.0f} GiB: it is not read."
                )
            file.seek(0)
            with np.load(file, allow_pickle=False) as npz:
                missing = [key for key in required if key not in npz.files]
                if missing:
                    found = ", ".join(npz.files) or "none"
                    raise InputError(f"{path} lacks {', '.join(missing)}; arrays found: {found}.")
                arrays = {key: npz[key] for key in (*required, *optional) if key in npz.files}
    except InputError:
        raise
    except _BAD_NPZ as error:
        raise InputError(f"{path} can't be read as an NPZ file of plain arrays: {error}") from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):  # NumPy hands out other members as their bytes
            raise InputError(
                f"{path} can't be read as an NPZ file of plain arrays: its member {key!r} is none"
            )
    return arrays
