"""Opens and unpacks only regular files of a size that fits; otherwise a sentence says why."""

import contextlib
import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from fedjax_pfl.data.limits import free, require_memory
from fedjax_pfl.utils.errors import InputError, shown

# Bytes of one unpacked file, about three times the largest of any data set here. Larger files are
# refused before they fill the memory.
LARGEST_FILE = 1_600_000_000
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def as_path(what: str, given: str | os.PathLike[str]) -> Path:
    """A path as a user writes it, with `~` and `~name` replaced by a home folder.

    Args:
      what: its name in sentences, such as "data_dir" or "--output_dir".
      given: the path.

    Raises:
      InputError: it is no text, holds a NUL or is not valid UTF-8, or names a home folder that
        doesn't exist.
    """
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    good = isinstance(text, str) and "\0" not in text
    with contextlib.suppress(UnicodeEncodeError):
        if good and text.encode() is not None:
            return Path(text).expanduser() if text[:1] != "~" else _at_home(what, text)
    raise InputError(f"{what} must be a path in UTF-8 without NUL, got {shown(text)}.")


def _at_home(what: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{what} is {shown(text)}, but there is no such home folder.") from error


def require_file(path: Path) -> int:
    """The size of a file in bytes, before it is opened: a pipe or a device may never end.

    Raises:
      InputError: it isn't there, or no regular file.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read: {reason(error)}.") from error
    check_type(path, found.st_mode)
    return found.st_size


def check_type(path: Path, mode: int) -> None:
    """Raises `InputError` unless `mode`, as `os.stat` tells it, is that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise InputError(f"{path} must be a regular file, but it is {kind}.")


@contextlib.contextmanager
def reading(what) -> Iterator[None]:
    """Turns the system's errors on files that can't be read into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or what} can't be read: {reason(error)}.") from error
    except MemoryError as error:
        raise InputError(f"{what} takes more memory than there is.") from error


def reason(error: BaseException, writing: bool = False) -> str:
    """The system's reason of an error, without the name of the file.

    Args:
      writing: the file was being written: a missing one then means its folder.
    """
    known = {
        errno.ENOENT: "the folder it lies in is not there",
        errno.EEXIST: "something else has its name",
    }
    number = getattr(error, "errno", None)
    if writing and number in known:
        return known[number]
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def save_arrays(file: IO[bytes], arrays: Mapping[str, np.ndarray], compressed: bool = True) -> None:
    """Writes arrays by name in NumPy's format NPZ."""
    # To a type checker, any of the names could be an option of NumPy's.
    save: Callable[..., None] = np.savez_compressed if compressed else np.savez
    save(file, **arrays)


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
      InputError: it can't be read, is no regular file, or doesn't fit into memory.
    """
    require_memory(str(path), require_file(path))
    with reading(path):
        return path.read_bytes()


def gunzip(data: bytes, what: str, kind: str = "a gzip file") -> bytes:
    """Unpacks a gzip stream piece by piece, whatever size it claims to have.

    Args:
      data: the compressed bytes.
      what: their name in sentences.
      kind: what they should have been.

    Raises:
      InputError: damaged, or it unpacks to more than `most_unpacked` bytes.
    """
    chunks, size, most = [], 0, most_unpacked()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while chunk := file.read(2**22):
                size += len(chunk)
                if size > most:
                    raise unpacks_to_more(what)
                chunks.append(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{what} is truncated or isn't {kind}: {error}") from error
    return b"".join(chunks)


def most_unpacked() -> int:
    """Largest size that a compressed file may unpack to: above any data set's, within memory."""
    room = free()
    return LARGEST_FILE if room is None else min(LARGEST_FILE, room)


def unpacks_to_more(what: str) -> InputError:
    """An `InputError` for a compressed file that is larger unpacked than that."""
    return InputError(f"{what} unpacks to more than {most_unpacked():,} bytes: it is not unpacked.")
