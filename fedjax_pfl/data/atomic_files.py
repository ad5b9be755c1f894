"""Atomic output files, and their versions."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedjax_pfl._version import __version__
from fedjax_pfl.data.files import reason
from fedjax_pfl.utils.errors import InputError, OutputError, cut, shown

LONGEST_NAME = 255 - len(".part-")  # what file systems take, less the prefix while writing


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's errors within the block into an `OutputError` that names `path`."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        why = reason(error, writing=True)
        raise OutputError(f"{cut(str(path), 300)} can't be written: {why}.") from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `path` if the block ends without an exception.

    Raises:
      OutputError: it can't be written; the temporary file is removed.
    """
    part = path.with_name(f".part-{path.name}")
    with writing(path):
        part.unlink(missing_ok=True)  # of a process that was killed while writing
        try:
            yield part
            os.replace(part, path)
        except OutputError as error:  # of a writer that knows only the temporary name
            raise (error.__cause__ if isinstance(error.__cause__, OSError) else error) from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def check_name(what: str, name: str) -> None:
    """Raise `InputError` for a name that no folder can have."""
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise InputError(
            f"{what} {shown(name)} has {len(os.fsencode(name))} bytes, and names of folders have "
            f"at most {LONGEST_NAME}."
        )


def output_exists(flag: str, path: Path) -> bool:
    """Return whether an output path exists already.

    Raises:
      InputError: it doesn't exist and can't be created: no writable folder above it, a broken link,
        or a name that is too long.
    """

    def never(why: str) -> InputError:
        return InputError(f"--{flag} can't be {cut(str(path), 300)}: {why}.")

    try:
        if "\0" in str(path):
            raise never("a path has no null byte")
        if path.exists():
            return True
        if path.is_symlink():
            raise never(f"it is a link to {os.readlink(path)}, which doesn't exist")
        parent = next(folder for folder in path.absolute().parents if folder.exists())
        effective = os.access in os.supports_effective_ids
        may = os.access(parent, os.W_OK | os.X_OK, effective_ids=effective)
        if not parent.is_dir() or not may:
            raise never(f"{parent} is not a writable folder")
        if max(len(os.fsencode(part)) for part in path.parts) > LONGEST_NAME:
            raise never(f"names have at most {LONGEST_NAME} bytes")
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise never(str(getattr(error, "strerror", None) or error)) from error
    return False


def require_version(what: str | Path, written: Any, remedy: str, older: Sequence[str] = ()) -> None:
    """Raise `InputError` if files of another version can't be read.

    Args:
      what: beginning of the message, such as a file's path.
      written: the version in the file; None for 0.2, which wrote none.
      remedy: a sentence on what to do.
      older: earlier series whose files can be read too, such as "0.4".
    """
    version = written if isinstance(written, str) else "0.2"
    series = ".".join(version.split(".")[:2])
    known = *older, ".".join(__version__.split(".")[:2])
    if series in known:
        return
    raise InputError(
        f"{what} was written by fedjax_pfl {cut(version, 20)}, and {__version__} reads only files "
        f"of series {' and '.join(known)}: names and entries have changed. {remedy}"
    )
