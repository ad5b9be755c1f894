"""MNIST, Fashion-MNIST, EMNIST and CIFAR, from published files or prepared TFDS data."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.sources.cifar import LAYOUTS, read_cifar
from fedjax_pfl.data.sources.idx import (
    CLOTHES,
    DIGITS,
    EMNIST_CLASSES,
    MNIST_STEMS,
    emnist_from_arrays,
    emnist_stems,
    read_emnist_zip,
    read_idx_folder,
)
from fedjax_pfl.data.sources.source_registry import folders, not_found, register_dataset
from fedjax_pfl.data.sources.tfds import find_prepared, read_prepared, tfds_folder
from fedjax_pfl.utils.errors import InputError

# Where Debian's package dataset-fashion-mnist puts the files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def _load(
    name: str,
    data_dir: Path | None,
    places: list[Path],
    read: Callable[[Path], Dataset | None],
    way: str,
    pickled: tuple[str, ...] = (),
) -> Dataset:
    """Load published files from the first folder that has some, else prepared TFDS data."""
    for folder in places:
        if (data := read(folder)) is not None:
            return data
    if prepared := find_prepared(name, tfds_folder(data_dir)):
        return read_prepared(name, prepared)
    for path in (folder / file for folder in places for file in pickled):
        if path.exists():
            raise InputError(
                f"{path} is the Python version of {name}, which holds pickles: they can run any "
                f"code and are never opened. Take the binary version, {LAYOUTS[name].archive}."
            )
    ways = [way]
    if data_dir is None:
        places = [tfds_folder(None) / name]
    if name == "fashion_mnist":
        if (data := read(DEBIAN)) is not None:
            return data
        places = [*places, DEBIAN]
        ways += ["install dataset-fashion-mnist (Debian)"]
    raise not_found(name, places, *ways, "let TFDS prepare it where TensorFlow is installed")


def load_mnist(name: str, data_dir: Path | None) -> Dataset:
    """MNIST or Fashion-MNIST."""

    def read(folder: Path) -> Dataset | None:
        arrays = read_idx_folder(name, folder, MNIST_STEMS)
        if arrays is None:
            return None
        classes = CLOTHES if name == "fashion_mnist" else DIGITS
        return dataset_from_arrays(name, *arrays, num_classes=10, class_names=classes)

    files = ", ".join(f"{stem}.gz" for stem in MNIST_STEMS)
    return _load(
        name, data_dir, folders(data_dir, name), read, f"set data_dir to a folder with {files}"
    )


def load_emnist(config: str, data_dir: Path | None) -> Dataset:
    """A configuration of EMNIST, from its gzip files, loose or inside gzip.zip."""
    name, stems = f"emnist/{config}", emnist_stems(config)

    def read(folder: Path) -> Dataset | None:
        arrays = read_idx_folder(name, folder, stems)
        if arrays is None and (folder / "gzip.zip").is_file():
            arrays = read_emnist_zip(folder / "gzip.zip", config)
        return None if arrays is None else emnist_from_arrays(config, *arrays)

    places = [inner for place in folders(data_dir, "emnist") for inner in (place, place / "gzip")]
    files = ", ".join(f"{stem}.gz" for stem in stems)
    way = f"set data_dir to a folder with gzip.zip (from NIST) or with {files}"
    return _load(name, data_dir, places, read, way)


def load_cifar(name: str, data_dir: Path | None) -> Dataset:
    """CIFAR-10 or CIFAR-100 with its fine labels, from the binary version."""
    layout = LAYOUTS[name]
    way = f"set data_dir to a folder with {layout.archive} or {layout.folder}/"
    read = partial(read_cifar, name)
    return _load(name, data_dir, folders(data_dir, name), read, way, layout.pickled)


for _name, _description in {
    "mnist": "70,000 handwritten digits, 28x28: a folder with the 4 IDX files",
    "fashion_mnist": "70,000 pieces of clothing, 28x28: a folder with 4 IDX files",
}.items():
    register_dataset(_name, _description)(partial(load_mnist, _name))
for _name, _count in {"cifar10": 10, "cifar100": 100}.items():
    _description = f"60,000 photographs of {_count} classes, 32x32: the binary version"
    register_dataset(_name, _description)(partial(load_cifar, _name))
for _config, _classes in EMNIST_CLASSES.items():
    _description = f"handwritten characters, 28x28, {len(_classes)} classes: gzip.zip or IDX files"
    register_dataset(f"emnist/{_config}", _description)(partial(load_emnist, _config))
