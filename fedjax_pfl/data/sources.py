"""Where samples come from: every source ends in one checked `Dataset` of NumPy arrays."""

import gzip
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_pfl.errors import InputError, require, unknown_name


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples in their original order; build one with `dataset_from_arrays`.

    Attributes:
      name: how results call the data set.
      train_x: training samples [n, ...], uint8 or float32; images are [n, height, width, channel].
      train_y: training labels [n], int32 in 0..num_classes-1.
      test_x: official test samples [m, ...] of the same type and shape; m = 0 where there are none.
      test_y: official test labels [m], int32.
      num_classes: number of classes C.
      input_scaling: name of the scaling that `default` stands for (see `fedjax_pfl.data.scaling`).
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    num_classes: int
    input_scaling: str

    @property
    def num_train(self) -> int:
        """Number of training samples."""
        return len(self.train_y)

    @property
    def num_test(self) -> int:
        """Number of official test samples, 0 where the data set has no official split."""
        return len(self.test_y)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_x.shape[1:]

    @property
    def labels(self) -> np.ndarray:
        """Labels of the pool [num_train + num_test], int32."""
        return np.concatenate([self.train_y, self.test_y])

    def pool(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples and labels that partitions index: training samples, then official test samples.

        Copies the samples where there is a test split, so call it once.
        """
        if self.num_test == 0:
            return self.train_x, self.train_y
        return np.concatenate([self.train_x, self.test_x]), self.labels


class Source(NamedTuple):
    """A row of `DATASETS`: a one-line description and `load(data_dir) -> Dataset`."""

    description: str
    load: Callable[[Path | None], Dataset]


DATASETS: dict[str, Source] = {}


def register_dataset(name: str, description: str):
    """Decorator that adds `load(data_dir: Path | None) -> Dataset` to `DATASETS` under `name`."""

    def register(load):
        DATASETS[name] = Source(description, load)
        return load

    return register


def load_dataset(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Loads a data set by name.

    Args:
      name: a name in `DATASETS`, or "NAME:PATH", short for `load_dataset(NAME, PATH)`.
      data_dir: folder (for `npz`: file) that holds the data; sources that need none ignore it.

    Raises:
      InputError: unknown name, data not found (the sentence lists where it was looked for and how
        to provide it), or files that are not what they should be.
    """
    name, _, path = name.partition(":")
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    place = path or data_dir
    return DATASETS[name].load(Path(place).expanduser() if place else None)


def dataset_from_arrays(
    name: str,
    train_x,
    train_y,
    test_x=None,
    test_y=None,
    num_classes: int | None = None,
    input_scaling: str | None = None,
) -> Dataset:
    """Checks arrays and makes a `Dataset` of them.

    Args:
      name: how results call the data set.
      train_x: [n, ...] uint8 or float, all finite; [n, h, w] gets a channel axis, [n, d] stays.
      train_y: [n] (or [n, 1]) integers in 0..C-1.
      test_x: official test samples, or None.
      test_y: official test labels, or None.
      num_classes: C; None takes the largest label + 1 and then refuses labels that never occur.
      input_scaling: scaling of `default`; None means "half" for uint8 and "raw" for float samples.

    Raises:
      InputError: a shape, type or value that is not allowed.
    """
    require((test_x is None) == (test_y is None), "Test samples and labels", name, "given together")
    train_x = _samples(f"training samples of data set {name!r}", train_x)
    train_y = _labels(f"training labels of data set {name!r}", train_y, len(train_x))
    require(len(train_y) > 0, f"Number of training samples of data set {name!r}", 0, "at least 1")
    if test_x is None:
        test_x, test_y = train_x[:0], train_y[:0]
    else:
        test_x = _samples(f"test samples of data set {name!r}", test_x)
        test_y = _labels(f"test labels of data set {name!r}", test_y, len(test_x))
    if (test_x.shape[1:], test_x.dtype) != (train_x.shape[1:], train_x.dtype):
        raise InputError(
            f"Test samples of data set {name!r} are {test_x.dtype} {test_x.shape[1:]}, but its "
            f"training samples are {train_x.dtype} {train_x.shape[1:]}: both must be the same."
        )
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        num_classes=_num_classes(name, np.concatenate([train_y, test_y]), num_classes),
        input_scaling=input_scaling or ("half" if train_x.dtype == np.uint8 else "raw"),
    )


def _samples(what: str, x) -> np.ndarray:
    x = np.asarray(x)
    allowed = x.dtype == np.uint8 or x.dtype.kind == "f"
    require(allowed, f"Type of the {what}", str(x.dtype), "uint8 or float")
    require(x.ndim >= 2, f"Shape of the {what}", x.shape, "[n, d], [n, h, w] or [n, h, w, c]")
    require(0 not in x.shape[1:], f"Shape of the {what}", x.shape, "without an empty axis")
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite: caught below
            x = x.astype(np.float32)
        bad = np.count_nonzero(~np.isfinite(x))
        require(
            bad == 0, f"Values of the {what}", f"{bad} NaN or infinite values", "finite float32"
        )
    return x[..., None] if x.ndim == 3 else x


def _labels(what: str, y, count: int) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    require(y.dtype.kind in "iu", f"Type of the {what}", str(y.dtype), "integer")
    require(y.shape == (count,), f"Shape of the {what}", y.shape, f"({count},), one per sample")
    low, high = (int(y.min()), int(y.max())) if count else (0, 0)
    inside = low >= 0 and high < 2**31
    require(inside, f"Values of the {what}", f"{low}..{high}", "integers 0..C-1")
    return y.astype(np.int32)


def _num_classes(name: str, labels: np.ndarray, given: int | None) -> int:
    top = int(labels.max())
    if given is not None:
        fits = top < given
        require(fits, f"Labels of data set {name!r}", f"0..{top}", f"in 0..{given - 1}")
        return given
    present = np.unique(labels)
    if len(present) <= top:
        first = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise InputError(
            f"Labels of data set {name!r} must be 0..C-1, but label {first} never occurs while "
            f"label {top} does: renumber them from 0, or give num_classes."
        )
    return top + 1


@register_dataset("digits", "1,797 handwritten digits, 8x8, inside scikit-learn: no file needed")
def _digits(data_dir: Path | None) -> Dataset:
    from sklearn.datasets import load_digits  # slow import: only where it is used

    raw = load_digits()
    return dataset_from_arrays(
        "digits", raw.images.astype(np.uint8), raw.target, num_classes=10, input_scaling="digits"
    )


@register_dataset("mnist", "70,000 handwritten digits, 28x28: a folder with the 4 IDX files")
def _mnist(data_dir: Path | None) -> Dataset:
    return _idx_dataset("mnist", _folders("mnist", data_dir))


@register_dataset("fashion_mnist", "70,000 pieces of clothing, 28x28: a folder with 4 IDX files")
def _fashion_mnist(data_dir: Path | None) -> Dataset:
    installed = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it
    folders = [*_folders("fashion_mnist", data_dir), installed]
    return _idx_dataset("fashion_mnist", folders, ", install dataset-fashion-mnist (Debian)")


@register_dataset("npz", "your own arrays, npz:PATH with x_train, y_train (and x_test, y_test)")
def _npz(path: Path | None) -> Dataset:
    if path is None:
        raise InputError("Data set 'npz' needs the path of a file: write npz:PATH or set data_dir.")
    arrays = read_npz(path, ("x_train", "y_train"), ("x_test", "y_test"))
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise InputError(f"{path} must have both of x_test and y_test or neither.")
    return dataset_from_arrays(
        path.stem, *(arrays.get(key) for key in ("x_train", "y_train", "x_test", "y_test"))
    )


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
            file.seek(0)
            with np.load(file, allow_pickle=False) as npz:
                missing = [key for key in required if key not in npz.files]
                if missing:
                    found = ", ".join(npz.files) or "none"
                    raise InputError(f"{path} lacks {', '.join(missing)}; arrays found: {found}.")
                return {key: npz[key] for key in (*required, *optional) if key in npz.files}
    except InputError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} can't be read as an NPZ file of plain arrays: {error}") from error


_IDX_STEMS = [
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
]


def _folders(name: str, data_dir: Path | None) -> list[Path]:
    return [] if data_dir is None else [data_dir / name, data_dir]


def _idx_dataset(name: str, folders: list[Path], hint: str = "") -> Dataset:
    for folder in folders:
        files = [_idx_file(folder, stem) for stem in _IDX_STEMS]
        if any(files):
            break
    else:
        looked = ", ".join(map(str, folders)) or "nowhere, as data_dir is not set"
        raise InputError(
            f"Data set {name!r} was not found (looked in: {looked}). To provide it, set data_dir "
            f"to a folder with {', '.join(f'{stem}.gz' for stem in _IDX_STEMS)}{hint}, give your "
            "own arrays as npz:PATH, or take 'digits', which needs no file."
        )
    for stem, file in zip(_IDX_STEMS, files, strict=True):
        if file is None:
            raise InputError(f"Data set {name!r} in {folder} lacks the file {stem}.gz.")
    arrays = []
    for images, labels in (files[:2], files[2:]):
        x, y = read_idx(images, 3), read_idx(labels, 1)
        if len(x) != len(y):
            raise InputError(f"{images} holds {len(x)} images but {labels} holds {len(y)} labels.")
        arrays += [x, y]
    return dataset_from_arrays(name, *arrays, num_classes=10)


def _idx_file(folder: Path, stem: str) -> Path | None:
    for name in (f"{stem}.gz", stem):
        if (folder / name).is_file():
            return folder / name
    return None


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes with `ndim` axes, gzip-compressed or not.

    Raises:
      InputError: not such a file, another number of axes, or fewer or more values than announced.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is truncated or isn't a gzip file: {error}") from error
    if data[:3] != b"\x00\x00\x08" or len(data) < 4:
        raise InputError(
            f"{path} isn't an IDX file of unsigned bytes: it starts with {data[:4]!r}."
        )
    if data[3] != ndim:
        raise InputError(f"{path} has {data[3]} axes where {ndim} are expected.")
    start = 4 + 4 * ndim
    shape = tuple(int(n) for n in np.frombuffer(data[4:start], ">u4")) if len(data) >= start else ()
    if len(shape) != ndim or len(data) - start != math.prod(shape):
        expected = f"{math.prod(shape)} values" if shape else f"{ndim} axis lengths"
        raise InputError(
            f"{path} announces {expected} but holds {max(len(data) - start, 0)}: it is truncated "
            "or damaged."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
