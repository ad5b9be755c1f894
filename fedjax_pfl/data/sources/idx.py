"""MNIST, Fashion-MNIST and EMNIST from their original IDX files."""

import math
import string
import zipfile
from pathlib import Path

import numpy as np

from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.files import gunzip, most_unpacked, read_bytes, require_file, unpacks_to_more
from fedjax_pfl.data.places import folders, not_found
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
MNIST_STEMS = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
# Where Debian's package dataset-fashion-mnist puts the files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def emnist_stems(config: str) -> tuple[str, ...]:
    """Names of the four files of one EMNIST configuration, without .gz."""
    return tuple(
        f"emnist-{config}-{part}-{kind}-ubyte"
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    )


def idx_dataset(name: str, looked: list[Path]) -> Dataset | None:
    """MNIST or Fashion-MNIST from the first of the folders that holds one of the files, or None."""
    for folder in looked:
        files = _idx_files(folder, MNIST_STEMS)
        if any(files):
            arrays = _read_pairs(name, folder, files, MNIST_STEMS)
            classes = CLOTHES if name == "fashion_mnist" else DIGITS
            return dataset_from_arrays(name, *arrays, num_classes=10, class_names=classes)
    return None


def idx_not_found(name: str, looked: list[Path]) -> InputError:
    """The sentence for `name` where `idx_dataset` found nothing."""
    stems = ", ".join(f"{stem}.gz" for stem in MNIST_STEMS)
    ways = [f"set data_dir to a folder with {stems}"]
    ways += ["install dataset-fashion-mnist (Debian)"] if name == "fashion_mnist" else []
    return not_found(name, looked, [*ways, f"let TFDS download it (name it tfds:{name})"])


def emnist_dataset(config: str, data_dir: Path | None) -> Dataset | None:
    """EMNIST from its gzip files, loose or inside gzip.zip, or None where there are none of them.

    The files hold every image transposed; here they stand upright, as people write.
    """
    stems = emnist_stems(config)
    for folder in emnist_folders(data_dir):
        files = _idx_files(folder, stems)
        if any(files):
            arrays = _read_pairs(f"emnist/{config}", folder, files, stems)
            return emnist_from_arrays(config, *arrays)
        if (folder / "gzip.zip").is_file():
            return emnist_from_arrays(config, *read_emnist_zip(folder / "gzip.zip", config))
    return None


def emnist_folders(data_dir: Path | None) -> list[Path]:
    """Where EMNIST's files are looked for."""
    if data_dir is None:
        return []
    places = folders("emnist", data_dir)
    return [inner for place in places for inner in (place, place / "gzip")]


def emnist_not_found(config: str, looked: list[Path]) -> InputError:
    """The sentence for EMNIST where `emnist_dataset` found nothing."""
    stems = ", ".join(f"{stem}.gz" for stem in emnist_stems(config))
    ways = [
        f"set data_dir to a folder with gzip.zip (from NIST) or with {stems}",
        f"let TFDS download it (name it tfds:emnist/{config})",
    ]
    return not_found(f"emnist/{config}", looked, ways)


def emnist_from_arrays(
    config: str,
    train_x: np.ndarray,
    train_y: np.ndarray,
    test_x: np.ndarray,
    test_y: np.ndarray,
    *,
    note: str = "",
) -> Dataset:
    """A `Dataset` of EMNIST's arrays as they were published: images are transposed here.

    Labels of `letters` are 1..26 in the files and become 0..25.
    """
    shift = config == "letters"
    if shift and min(y.min(initial=1) for y in (train_y, test_y)) < 1:
        raise InputError("Labels of data set 'emnist/letters' must be 1..26, got 0.")
    classes = EMNIST_CLASSES[config]
    return dataset_from_arrays(
        f"emnist/{config}",
        _upright(train_x),
        train_y - shift,
        _upright(test_x),
        test_y - shift,
        num_classes=len(classes),
        class_names=classes,
        note=note,
    )


def _upright(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(1, 2))


def read_emnist_zip(path: Path, config: str) -> list[np.ndarray]:
    """The four arrays of one configuration from NIST's gzip.zip, images transposed as stored."""
    arrays = []
    require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            for stem, ndim in zip(emnist_stems(config), (3, 1, 3, 1), strict=True):
                member = f"gzip/{stem}.gz"
                if member not in archive.namelist():
                    raise InputError(f"{path} lacks {member}: it isn't EMNIST's gzip.zip.")
                if archive.getinfo(member).file_size > most_unpacked():
                    raise unpacks_to_more(f"{path}/{member}")
                data = gunzip(archive.read(member), f"{path}/{member}")
                arrays.append(_decode_idx(data, f"{path}/{member}", ndim))
    except InputError:
        raise
    except Exception as error:  # damaged members lead zipfile and its codecs to anything
        raise InputError(f"{path} is truncated or isn't a ZIP file: {error}") from error
    _check_pair(f"{path}, training part", *arrays[:2])
    _check_pair(f"{path}, test part", *arrays[2:])
    return arrays


def _idx_files(folder: Path, stems: tuple[str, ...]) -> list[Path | None]:
    return [_idx_file(folder, stem) for stem in stems]


def _idx_file(folder: Path, stem: str) -> Path | None:
    for name in (f"{stem}.gz", stem):
        if (folder / name).is_file():
            return folder / name
    return None


def _read_pairs(name: str, folder: Path, files, stems) -> list[np.ndarray]:
    for stem, file in zip(stems, files, strict=True):
        if file is None:
            raise InputError(f"Data set {name!r} in {folder} lacks the file {stem}.gz.")
    arrays = []
    for images, labels in (files[:2], files[2:]):
        x, y = read_idx(images, 3), read_idx(labels, 1)
        if len(x) != len(y):
            raise InputError(f"{images} holds {len(x)} images but {labels} holds {len(y)} labels.")
        arrays += [x, y]
    return arrays


def _check_pair(what: str, images: np.ndarray, labels: np.ndarray) -> None:
    if len(images) != len(labels):
        raise InputError(f"{what}: {len(images)} images but {len(labels)} labels.")


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes with `ndim` axes, gzip-compressed (.gz) or not.

    Raises:
      InputError: not such a file, another number of axes, or fewer or more values than announced.
    """
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
