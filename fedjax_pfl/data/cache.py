"""On-disk cache of decoded images, and of features of frozen networks.

Cache files are in `.fedjax_pfl_cache` beside the data or, if that folder isn't writable, in the
user's cache folder ($XDG_CACHE_HOME or ~/.cache, then fedjax_pfl). FEDJAX_PFL_CACHE names another
folder for all of them. They may be deleted at any time.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.atomic_files import atomic_write
from fedjax_pfl.data.files import as_path, check_type, read_bytes, reading, require_file
from fedjax_pfl.data.npz import read_npz, save_arrays
from fedjax_pfl.utils.errors import InputError

# Part of every file name: raise it when decoding changes, so that older files are not read.
_VERSION = 1
# Files of a listing whose content is hashed too, which takes milliseconds.
_PROBES = 64


def cached_arrays(
    name: str,
    folder: Path | None,
    key: str,
    make: Callable[[], dict[str, np.ndarray]],
    needed: Sequence[str] = ("train_x", "train_y"),
) -> dict[str, Any]:
    """Return arrays from the cache, or make and cache them.

    A damaged cache file is replaced. Without a writable folder nothing is cached.

    Args:
      name: beginning of the file's name.
      folder: folder of the data; None if there is none.
      key: hash of what the arrays are made of (`hash_of`), part of the file's name.
      make: returns the arrays, perhaps test_x and test_y beside those in `needed`.
      needed: names of arrays without which a file is damaged.
    """
    file = f"{name.replace('/', '-')}-v{_VERSION}-{key[:24]}.npz"
    places = _places(folder)
    for place in places:
        if (place / file).is_file():
            with contextlib.suppress(InputError):
                return read_npz(place / file, needed, ("test_x", "test_y"))
            break  # damaged: made again and replaced
    arrays = make()
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            with atomic_write(place / file) as part, part.open("xb") as out:
                save_arrays(out, arrays, compressed=False)
            break
    return arrays


def hash_of(files: Iterable[Path], recipe: str) -> str:
    """Return the SHA-256 of a recipe and of the names and contents of files."""
    digest = hashlib.sha256(recipe.encode())
    for path in files:
        require_file(path)
        with reading(path), path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"\n{path.name} {content}".encode())
    return digest.hexdigest()


def hash_of_listing(files: Iterable[Path], root: Path, recipe: str) -> str:
    """Return the SHA-256 of a recipe, a folder, its files' paths, sizes and times, and some files.

    For folders of many small files, which take nearly as long to read as to decode. The folder's
    own path is hashed, as one cache may serve many folders, and so is the content of up to 64
    files spread evenly over the list.

    Args:
      files: the files, in the order in which they are decoded.
      root: the folder that contains them.
      recipe: what else the arrays depend on.
    """
    files = list(files)
    digest = hashlib.sha256(recipe.encode() + b"\n" + os.fsencode(root.resolve()))
    prefix = f"{root.as_posix()}/"
    for path in files:
        with reading(path):
            stat = os.stat(path)
        check_type(path, stat.st_mode)
        place = path.as_posix().removeprefix(prefix)  # relative_to() takes longer than stat()
        # A replaced file may have the same size and time, but has another inode; a file that is
        # written over has another time of change.
        line = f"\n{place} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino} {stat.st_ctime_ns}"
        digest.update(line.encode("utf-8", "surrogateescape"))
    for i in range(min(len(files), _PROBES)):
        path = files[i * len(files) // min(len(files), _PROBES)]
        digest.update(hashlib.sha256(read_bytes(path)).digest())
    return digest.hexdigest()


def _places(folder: Path | None) -> list[Path]:
    chosen = os.environ.get("FEDJAX_PFL_CACHE")
    if chosen:
        return [as_path("FEDJAX_PFL_CACHE", chosen)]
    places = [] if folder is None else [folder / ".fedjax_pfl_cache"]
    with contextlib.suppress(RuntimeError):  # this user has no home folder
        user = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        places.append(Path(user) / "fedjax_pfl")
    return places
