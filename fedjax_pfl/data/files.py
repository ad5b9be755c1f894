"""Paths and regular files: opening, reading and unpacking, with clear errors."""

import contextlib
import errno
import gzip
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedjax_pfl.data.limits import free, require_memory
from fedjax_pfl.utils.errors import InputError, shown

# Bytes that a compressed file may unpack to: about three times the largest of any data set here.
LARGEST_FILE = 1_600_000_000
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def as_path(what: str, path: str | os.PathLike[str]) -> Path:
    """Convert a user's path; `~` and `~name` are replaced by a home folder.

    Args:
      what: its name in messages, such as "data_dir" or "--output_dir".
      path: the path.

    Raises:
      InputError: not text, a NUL byte, invalid UTF-8, or a home folder that doesn't exist.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    with contextlib.suppress(UnicodeEncodeError):
        if isinstance(text, str) and "\0" not in text and text.encode() is not None:
            try:
                return Path(text).expanduser() if text.startswith("~") else Path(text)
            except RuntimeError as error:
                message = f"{what} is {shown(text)}, but there is no such home folder."
                raise InputError(message) from error
    raise InputError(f"{what} must be a path in UTF-8 without NUL, got {shown(text)}.")


def require_file(path: Path) -> int:
    """Return the size of a regular file in bytes, without opening it: a pipe may never end.

    Raises:
      InputError: the file doesn't exist or isn't a regular file.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read: {reason(error)}.") from error
    check_type(path, status.st_mode)
    return status.st_size


def check_type(path: Path, mode: int) -> None:
    """Raise `InputError` unless `mode` (of `os.stat`) is that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise InputError(f"{path} must be a regular file, but it is {kind}.")


@contextlib.contextmanager
def reading(what: object, kind: str = "") -> Iterator[None]:
    """Turn errors within the block into an `InputError` of one sentence with the file's name.

    Args:
      what: the file.
      kind: the format that a library decodes in the block, such as "a Parquet file". Libraries
        raise all kinds of exceptions for damaged files, so every exception becomes an
        `InputError`. Empty: only the system's errors do.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{what} takes more memory than there is.") from error
    except Exception as error:
        if isinstance(error, OSError) and (error.errno is not None or not kind):
            name = error.filename or what
            raise InputError(f"{name} can't be read: {reason(error)}.") from error
        if kind:
            raise unreadable(what, kind, error) from error
        raise


def unreadable(what: object, kind: str, why: object) -> InputError:
    """Return the error for a file that isn't of the format `kind`, with the first line of `why`."""
    lines = str(why).strip().splitlines() or [type(why).__name__]
    return InputError(f"{what} can't be read as {kind}: {lines[0][:300]}")


def reason(error: BaseException, writing: bool = False) -> str:
    """Return the system's reason for an error, without the name of the file.

    Args:
      error: the error.
      writing: whether the file was being written: a missing one then means its folder.
    """
    known = {
        errno.ENOENT: "its folder doesn't exist",
        errno.EEXIST: "something else has its name",
    }
    number = getattr(error, "errno", None)
    if writing and number in known:
        return known[number]
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
      InputError: it can't be read, isn't a regular file, or doesn't fit into memory.
    """
    require_memory(str(path), require_file(path))
    with reading(path):
        return path.read_bytes()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
      InputError: no such file, not JSON, or another value than an object. An object that has a name
        twice isn't JSON, as Python would silently use the last value.
    """
    with reading(path, "JSON"):
        if not path.exists():
            raise InputError(f"No file {path}.")
        value = json.loads(read_bytes(path), object_pairs_hook=_distinct)
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object, and holds a {type(value).__name__}.")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"{name!r:.100} is there twice")
        names.add(name)
    return dict(pairs)


def gunzip(data: bytes, what: str, kind: str = "a gzip file") -> bytes:
    """Unpack a gzip stream piece by piece, whatever size it claims to have.

    Args:
      data: the compressed bytes.
      what: their name in messages.
      kind: the expected format.

    Raises:
      InputError: damaged, or it unpacks to more than `most_unpacked` bytes.
    """
    chunks, size, most = [], 0, most_unpacked()
    with reading(what, kind), gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        while chunk := file.read(2**22):
            size += len(chunk)
            if size > most:
                raise unpacks_to_more(what)
            chunks.append(chunk)
    return b"".join(chunks)


def most_unpacked() -> int:
    """Return the number of bytes that a compressed file may unpack to."""
    return min(LARGEST_FILE, free())


def unpacks_to_more(what: str) -> InputError:
    """Return the error for a compressed file that unpacks to more than that."""
    return InputError(f"{what} unpacks to more than {most_unpacked():,} bytes: it is not unpacked.")
