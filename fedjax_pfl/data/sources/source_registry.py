"""Where samples come from: every source ends in one checked `Dataset` of NumPy arrays.

Here are the table of sources and `load_dataset`; each kind of file has its own module in this
folder. docs/data_sources.md says where each source looks for its files.
"""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from fedjax_pfl.data.columns import column_names
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.files import as_path, reading
from fedjax_pfl.data.labels import CLASSES
from fedjax_pfl.data.places import folders, npz_names, read_npz
from fedjax_pfl.data.sources import cifar, idx
from fedjax_pfl.data.sources.idx import EMNIST_CLASSES, read_idx
from fedjax_pfl.data.sources.images import load_cinic10, load_folder, load_tiny_imagenet
from fedjax_pfl.data.sources.leaf import load_leaf
from fedjax_pfl.data.sources.parquet import load_cifar10_jpeg, load_parquet
from fedjax_pfl.data.sources.pfllib import load_pfllib
from fedjax_pfl.data.sources.recordings import load_recordings
from fedjax_pfl.data.sources.table import load_table
from fedjax_pfl.data.sources.text import load_ag_news, load_text_csv
from fedjax_pfl.data.sources.tfds import find_prepared, load_tfds, read_prepared
from fedjax_pfl.data.sources.tfds_prepare import prepare_tfds, tfds_folder
from fedjax_pfl.utils import aliases, name_matching
from fedjax_pfl.utils.errors import InputError, unknown_name
from fedjax_pfl.utils.registries import F, registering

__all__ = [
    "DATASETS",
    "Dataset",
    "Source",
    "dataset_from_arrays",
    "load_dataset",
    "prepare_tfds",
    "read_idx",
    "read_npz",
    "register_dataset",
]


class Source(NamedTuple):
    """A row of `DATASETS`.

    Attributes:
      description: one line.
      load: `load(data_dir, **options) -> Dataset`, or `load(data_dir, name, **options)` for a
        source that reads many data sets by name.
      named: whether the text after the colon in "SOURCE:..." is such a name instead of a path.
      bundled: whether it needs no files, so that nothing may follow the colon.
      natural: whether its samples say whose they are, so that scripts make clients by column.
    """

    description: str
    load: Callable[..., Dataset]
    named: bool = False
    bundled: bool = False
    natural: bool = False

    @property
    def text_options(self) -> list[str]:
        """Names of its options that are text, such as names of columns."""
        parameters = inspect.signature(self.load).parameters.values()
        return [p.name for p in parameters if str in (p.annotation, *get_args(p.annotation))]


DATASETS: dict[str, Source] = {}


def register_dataset(
    name: str,
    description: str,
    named: bool = False,
    bundled: bool = False,
    natural: bool = False,
) -> Callable[[F], F]:
    """Decorator that adds `load(data_dir: Path | None, ...) -> Dataset` to `DATASETS`.

    Raises:
      InputError: the name is another data set's.
    """

    def row(load: Callable[..., Dataset]) -> Source:
        return Source(description, load, named, bundled, natural)

    return registering("data set", DATASETS, name, row)


def load_dataset(name: str, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """Loads a data set by name.

    Args:
      name: a name in `DATASETS`, in any spelling ("CIFAR-10" is "cifar10"); "NAME:PATH", short for
        `load_dataset(NAME, PATH)`; or "tfds:NAME", where NAME is one of TFDS's.
      data_dir: folder (for `npz` and `text_csv`: file) that holds the data; sources that need none
        ignore it.
      **options: further options of the source, such as `image_size` or `max_tokens`; see the
        functions in `DATASETS`.

    Raises:
      InputError: unknown name or option, data not found (the sentence lists where it was looked for
        and how to provide it), or files of the wrong form.
    """
    if not isinstance(name, str):
        raise unknown_name("data set", name, DATASETS)
    given, (name, _, rest) = name, name.partition(":")
    name = name_matching.ours(name, DATASETS, aliases.DATASETS)
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS, hint=_of_path(given))
    source = DATASETS[name]
    arguments = []
    if source.named:
        if not rest:
            raise InputError(f"Data set {name!r} needs a name: write {name}:NAME.")
        arguments = [rest]
    elif rest and source.bundled:
        raise InputError(f"Data set {name!r} needs no file: write {name}, got '{name}:{rest}'.")
    else:
        data_dir = rest or data_dir
    known = list(inspect.signature(source.load).parameters)[1 + len(arguments) :]
    for option in options:
        if option not in known:
            if not known:
                raise InputError(f"Data set {name!r} takes no options, got {option!r}.")
            raise unknown_name(f"option of data set {name!r}", option, known)
    if data_dir is None or (isinstance(data_dir, str) and not data_dir):
        place = None
    else:
        place = as_path("data_dir", data_dir)
    with reading(place or name):
        return source.load(place, *arguments, **options)


@register_dataset(
    "digits", "1,797 handwritten digits, 8x8, inside scikit-learn: no file needed", bundled=True
)
def _digits(data_dir: Path | None) -> Dataset:
    from sklearn.datasets import load_digits  # slow import: only where it is used

    pixels, labels = load_digits(return_X_y=True)  # [n, 64]
    return dataset_from_arrays(
        "digits",
        pixels.reshape(-1, 8, 8).astype(np.uint8),
        labels,
        num_classes=10,
        input_scaling="digits",
        class_names=idx.DIGITS,
    )


@register_dataset(
    "diabetes",
    "442 patients and how their diabetes went on: a regression, inside scikit-learn",
    bundled=True,
)
def _diabetes(data_dir: Path | None) -> Dataset:
    from sklearn.datasets import load_diabetes  # slow import: only where it is used

    read: Any = load_diabetes(return_X_y=True)
    features, progress = read  # [442, 10], [442]
    return dataset_from_arrays(
        "diabetes",
        features * len(features) ** 0.5,  # scikit-learn's have a deviation of 1 / sqrt(442)
        (progress - progress.mean()) / progress.std(),
        task="regression",
        note="features and the number to predict in standard deviations from their means",
    )


def _prepared(name: str, data_dir: Path | None) -> Dataset | None:
    """The data set as prepared by TFDS, None where it isn't."""
    folder = find_prepared(name, tfds_folder(data_dir))
    return None if folder is None else read_prepared(name, folder)


def _looked(name: str, data_dir: Path | None, looked: list[Path]) -> list[Path]:
    return looked if data_dir else [tfds_folder(None) / name, *looked]


def _load_idx(name: str, data_dir: Path | None) -> Dataset:
    """Raw files in data_dir, else what TFDS prepared there, else Debian's (Fashion-MNIST)."""
    looked = folders(name, data_dir)
    data = idx.idx_dataset(name, looked) or _prepared(name, data_dir)
    if data is None and name == "fashion_mnist":
        data = idx.idx_dataset(name, [idx.DEBIAN])
        looked = [*looked, idx.DEBIAN]
    if data is None:
        raise idx.idx_not_found(name, _looked(name, data_dir, looked))
    return data


def _load_emnist(config: str, data_dir: Path | None) -> Dataset:
    """Raw files in data_dir, else what TFDS prepared there."""
    data = idx.emnist_dataset(config, data_dir) or _prepared(f"emnist/{config}", data_dir)
    if data is None:
        looked = _looked(f"emnist/{config}", data_dir, idx.emnist_folders(data_dir))
        raise idx.emnist_not_found(config, looked)
    return data


def _load_cifar(name: str, data_dir: Path | None) -> Dataset:
    """Raw files in data_dir, else what TFDS prepared there."""
    data = cifar.cifar_dataset(name, data_dir) or _prepared(name, data_dir)
    if data is None:
        looked = _looked(name, data_dir, folders(name, data_dir))
        raise cifar.cifar_not_found(name, looked)
    return data


def _load_npz(
    path: Path | None,
    vocab_size: int | None = None,
    task: str = CLASSES,
    id_columns: str = "",
) -> Dataset:
    if path is None:
        raise InputError("Data set 'npz' needs the path of a file: write npz:PATH or set data_dir.")
    arrays = read_npz(path, ("x_train", "y_train"), ("x_test", "y_test"))
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise InputError(f"{path} must have both of x_test and y_test or neither.")
    ends = [end for end in ("_train", "_test") if f"x{end}" in arrays]
    known = [name.removesuffix(end) for end in ends[:1] for name in npz_names(path)
             if name.endswith(end) and name not in arrays]  # fmt: skip
    ids = {name: [f"{name}{end}" for end in ends] for name in column_names(id_columns, known, path)}
    kept = read_npz(path, [key for keys in ids.values() for key in keys])
    return dataset_from_arrays(
        path.stem,
        arrays["x_train"],
        arrays["y_train"],
        arrays.get("x_test"),
        arrays.get("y_test"),
        vocab_size=vocab_size,
        columns={name: np.concatenate([kept[key].reshape(-1) for key in keys])
                  for name, keys in ids.items()},
        task=task,
    )  # fmt: skip


DATASETS |= {
    "mnist": Source(
        "70,000 handwritten digits, 28x28: a folder with the 4 IDX files",
        partial(_load_idx, "mnist"),
    ),
    "fashion_mnist": Source(
        "70,000 pieces of clothing, 28x28: a folder with 4 IDX files",
        partial(_load_idx, "fashion_mnist"),
    ),
    "cifar10": Source(
        "60,000 photographs of 10 classes, 32x32: the binary version",
        partial(_load_cifar, "cifar10"),
    ),
    "cifar100": Source(
        "60,000 photographs of 100 classes, 32x32: the binary version",
        partial(_load_cifar, "cifar100"),
    ),
    "cifar10_jpeg": Source(
        "CIFAR-10 made lossy (JPEG in Parquet files): not CIFAR-10", load_cifar10_jpeg
    ),
    "cinic10": Source("CINIC-10: 270,000 images 32x32 in class folders", load_cinic10),
    "tiny_imagenet": Source(
        "Tiny-ImageNet: 110,000 images 64x64 of 200 classes in folders", load_tiny_imagenet
    ),
    "ag_news": Source("127,600 news texts of 4 classes: train.csv and test.csv", load_ag_news),
    "folder": Source("your own images, folder:PATH with one folder per class", load_folder),
    "parquet": Source("your own images, parquet:PATH with train*.parquet files", load_parquet),
    "table": Source("your own table of numbers, table:PATH of a CSV or Parquet file", load_table),
    "text_csv": Source("your own texts, text_csv:PATH of a CSV file or folder", load_text_csv),
    "npz": Source(
        "your own arrays, npz:PATH with x_train, y_train (and x_test, y_test)", _load_npz
    ),
    "pfllib": Source(
        "a folder that PFLlib wrote, pfllib:PATH, with its samples and their clients", load_pfllib
    ),
    "leaf": Source(
        "a folder that LEAF wrote, leaf:PATH, such as FEMNIST or Shakespeare, by user",
        load_leaf,
        natural=True,
    ),
    "recordings": Source(
        "windows of your own sensors' recordings, recordings:PATH of an NPZ file",
        load_recordings,
        natural=True,
    ),
    "tfds": Source("anything TFDS prepared, tfds:NAME such as tfds:kmnist", load_tfds, named=True),
}
for _config, _classes in EMNIST_CLASSES.items():
    DATASETS[f"emnist/{_config}"] = Source(
        f"handwritten characters, 28x28, {len(_classes)} classes: gzip.zip or IDX files",
        partial(_load_emnist, _config),
    )


# The sources that read a file with this ending.
BY_ENDING = {
    ".csv": ("table", "text_csv"),
    ".parquet": ("parquet", "table"),
    ".npz": ("npz", "recordings"),
}


def _of_path(given: str) -> str | None:
    """What is said of an unknown name that looks like a file or folder; None of other names."""
    if ":" in given or given.startswith("emnist/") or not {"/", "."} & set(given):
        return None
    try:
        there = Path(given).exists()
    except (OSError, ValueError):
        return None
    if there:
        forms = BY_ENDING.get(Path(given).suffix.lower(), ("npz", "folder"))
        text = " or ".join(f"{name}:PATH" for name in forms)
        return f"There is such a path: write what it holds, as in {text}."
    return "There is no such path either." if "/" in given else None
