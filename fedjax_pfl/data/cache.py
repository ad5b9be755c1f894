"""Decoded arrays kept on disk, so that images are decoded once.

A cache file lies beside the data, in `.fedjax_pfl_cache`, or, where that folder can't be written,
in the user's own cache folder ($XDG_CACHE_HOME or ~/.cache, then fedjax_pfl). Setting
FEDJAX_PFL_CACHE to a folder puts all of them there. A cache file may be deleted at any time.
"""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fedjax_pfl.data.files import (
    as_path,
    check_type,
    read_bytes,
    reading,
    require_file,
    save_arrays,
)
from fedjax_pfl.data.places import npz_names, read_npz
from fedjax_pfl.utils.errors import InputError

# Part of every name: raise it when decoding changes, so that older files are not read.
_VERSION = 1
# The arrays allowed in a cache file, which may come from a stranger; "names" was in older ones.
_ARRAYS = {"train_x", "train_y", "test_x", "test_y"}
# So many files of a listing are also read, so that folders are told apart within milliseconds.
_PROBES = 64


def cached_arrays(
    name: str, folder: Path, key: str, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Arrays from the cache, or made and put there.

    A file that is damaged or lacks an array is made again. Where the cache can't be written, there
    is none. Nothing is unpickled.

    Args:
      name: begins the file's name.
      folder: where the data lies.
      key: hash of what the arrays are made of (`hash_of`); the file's name holds it.
      make: makes the arrays: train_x and train_y, and perhaps test_x and test_y.
    """
    file = f"{name.replace('/', '-')}-v{_VERSION}-{key[:24]}.npz"
    places = _places(folder)
    for place in places:
        if (place / file).is_file():
            with contextlib.suppress(InputError):
                names = set(npz_names(place / file)) - {"names"}
                if {"train_x", "train_y"} <= names <= _ARRAYS:
                    return read_npz(place / file, names)
            break  # damaged: made again and replaced
    arrays = make()
    for place in places:
        if _write(place / file, arrays):
            break
    return arrays


def hash_of(files: Iterable[Path], recipe: str) -> str:
    """SHA-256 of a recipe and of the names and contents of files."""
    digest = hashlib.sha256(recipe.encode())
    for path in files:
        require_file(path)
        with reading(path), path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"\n{path.name} {content}".encode())
    return digest.hexdigest()


def hash_of_listing(files: Iterable[Path], root: Path, recipe: str) -> str:
    """SHA-256 of a recipe, the folder, its files' paths, sizes and times of change, and some files.

    For folders of very many small files: reading all of them costs nearly as much as decoding,
    which the cache should save. The folder itself counts, as one cache may serve many, and
    so does the content of up to 64 files spread evenly over the list.

    Args:
      files: the files, in the order in which they are decoded.
      root: the folder that holds them.
      recipe: what else the arrays depend on.

    Raises:
      InputError: a file that can't be read, or that is a pipe, a device or a folder.
    """
    files = list(files)
    digest = hashlib.sha256(recipe.encode() + b"\n" + os.fsencode(root.resolve()))
    prefix = f"{root.as_posix()}/"
    for path in files:
        with reading(path):
            stat = os.stat(path)
        check_type(path, stat.st_mode)
        place = path.as_posix().removeprefix(prefix)  # relative_to() takes longer than stat()
        # A file that takes another's place may have its size and time, but is another inode, and
        # one that is written over has another time of change.
        line = f"\n{place} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino} {stat.st_ctime_ns}"
        digest.update(line.encode("utf-8", "surrogateescape"))
    for i in range(min(len(files), _PROBES)):
        path = files[i * len(files) // min(len(files), _PROBES)]
        digest.update(hashlib.sha256(read_bytes(path)).digest())
    return digest.hexdigest()


def _places(folder: Path) -> list[Path]:
    chosen = os.environ.get("FEDJAX_PFL_CACHE")
    if chosen:
        return [as_path("FEDJAX_PFL_CACHE", chosen)]
    places = [folder / ".fedjax_pfl_cache"]
    with contextlib.suppress(RuntimeError):  # this user has no home folder
        user = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        places.append(Path(user) / "fedjax_pfl")
    return places


def _write(path: Path, arrays: dict[str, np.ndarray]) -> bool:
    # Written aside, then renamed: a reader or a second writer never sees half a file.
    aside = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("xb") as file:
            save_arrays(file, arrays, compressed=False)
        aside.replace(path)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return True
