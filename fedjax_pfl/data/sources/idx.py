"""IDX files (MNIST, Fashion-MNIST, EMNIST) and the names of their classes."""

import math
import string
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.files import (
    gunzip,
    most_unpacked,
    read_bytes,
    reading,
    require_file,
    unpacks_to_more,
)
from fedjax_pfl.utils.errors import InputError

DIGITS = tuple(string.digits)
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_MERGED = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")
EMNIST_CLASSES = {
    "byclass": (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase),
    "bymerge": _MERGED,
    "balanced": _MERGED,
    "letters": tuple(string.ascii_uppercase),
    "digits": DIGITS,
    "mnist": DIGITS,
}


def _stems(prefix: str, *parts: str) -> tuple[str, ...]:
    kinds = ("images-idx3", "labels-idx1")
    return tuple(f"{prefix}{part}-{kind}-ubyte" for part in parts for kind in kinds)


MNIST_STEMS = _stems("", "train", "t10k")


def emnist_stems(config: str) -> tuple[str, ...]:
    """Return the names of the four files of one EMNIST configuration, without .gz."""
    return _stems(f"emnist-{config}-", "train", "test")


def emnist_from_arrays(
    config: str,
    train_x: np.ndarray,
    train_y: np.ndarray,
    test_x: np.ndarray,
    test_y: np.ndarray,
    *,
    note: str = "",
) -> Dataset:
    """Make a `Dataset` of EMNIST's arrays as they were published.

    The published images are transposed; here they are upright. Labels of `letters` are 1..26 in
    the files and become 0..25.
    """
    shift = config == "letters"
    if shift and min(y.min(initial=1) for y in (train_y, test_y)) < 1:
        raise InputError("Labels of data set 'emnist/letters' must be 1..26, got 0.")
    classes = EMNIST_CLASSES[config]
    return dataset_from_arrays(
        f"emnist/{config}",
        np.ascontiguousarray(train_x.swapaxes(1, 2)),
        train_y - shift,
        np.ascontiguousarray(test_x.swapaxes(1, 2)),
        test_y - shift,
        num_classes=len(classes),
        class_names=classes,
        note=note,
    )


def read_emnist_zip(path: Path, config: str) -> list[np.ndarray]:
    """Return the four arrays of one configuration from NIST's gzip.zip, images transposed."""
    arrays = []
    require_file(path)
    with reading(path, "a ZIP file"), zipfile.ZipFile(path) as archive:
        for stem, ndim in zip(emnist_stems(config), (3, 1, 3, 1), strict=True):
            member = f"gzip/{stem}.gz"
            if member not in archive.namelist():
                raise InputError(f"{path} lacks {member}: it isn't EMNIST's gzip.zip.")
            if archive.getinfo(member).file_size > most_unpacked():
                raise unpacks_to_more(f"{path}/{member}")
            data = gunzip(archive.read(member), f"{path}/{member}")
            arrays.append(_decode_idx(data, f"{path}/{member}", ndim))
    return arrays


def read_idx_folder(name: str, folder: Path, stems: Sequence[str]) -> list[np.ndarray] | None:
    """Return images and labels of both splits, or None if the folder has none of the files.

    Args:
      name: name of the data set in messages.
      folder: the folder.
      stems: names of the four files, each of which may end in .gz.
    """
    files = {}
    for stem in stems:
        for path in (folder / f"{stem}.gz", folder / stem):
            if path.is_file():
                files.setdefault(stem, path)
    missing = [stem for stem in stems if stem not in files]
    if files and missing:
        raise InputError(f"Data set {name!r} in {folder} lacks the file {missing[0]}.gz.")
    if missing:
        return None
    return [read_idx(files[stem], ndim) for stem, ndim in zip(stems, (3, 1, 3, 1), strict=True)]


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes with `ndim` axes, gzip-compressed (.gz) or not."""
    data = read_bytes(path)
    if path.suffix == ".gz":
        data = gunzip(data, str(path))
    return _decode_idx(data, str(path), ndim)


def _decode_idx(data: bytes, what: str, ndim: int) -> np.ndarray:
    if data[:3] != b"\x00\x00\x08" or len(data) < 4:
        raise InputError(
            f"{what} isn't an IDX file of unsigned bytes: it starts with {data[:4]!r}."
        )
    if data[3] != ndim:
        raise InputError(f"{what} has {data[3]} axes where {ndim} are expected.")
    start = 4 + 4 * ndim
    shape = tuple(int(n) for n in np.frombuffer(data[4:start], ">u4")) if len(data) >= start else ()
    if len(shape) != ndim or len(data) - start != math.prod(shape):
        expected = f"{math.prod(shape)} values" if shape else f"{ndim} axis lengths"
        raise InputError(
            f"{what} announces {expected} but holds {max(len(data) - start, 0)}: it is truncated "
            "or damaged."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
