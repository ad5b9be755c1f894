"""Data sets prepared by tensorflow-datasets (TFDS), read without TensorFlow."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.cache import cached_arrays, hash_of
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.files import as_path, read_json, reading, require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.sources.idx import EMNIST_CLASSES, emnist_from_arrays
from fedjax_pfl.data.sources.source_registry import register_dataset
from fedjax_pfl.data.sources.splits import notes, unused_note
from fedjax_pfl.utils.errors import InputError

# NAME, NAME/CONFIG, each with :VERSION or without.
_NAME = re.compile(r"(?P<name>[a-z0-9_]+)(/(?P<config>[\w.-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
_CHUNK = 4096
_BYTES = 2**28


@register_dataset("tfds", "anything TFDS prepared, tfds:NAME such as tfds:kmnist", named=True)
def load_tfds(data_dir: Path | None, name: str) -> Dataset:
    """A TFDS data set of images and class labels by its TFDS name.

    What TFDS prepared in a random-access format is read; nothing is prepared or downloaded.

    Args:
      data_dir: TFDS's folder; None means $TFDS_DATA_DIR or ~/tensorflow_datasets.
      name: TFDS's name, such as `mnist`, `emnist/balanced` or `cmaterdb:1.0.0`.
    """
    place = tfds_folder(data_dir)
    prepared = find_prepared(name, place)
    if prepared is None:
        raise InputError(
            f"TFDS data set {name!r} isn't prepared in {place}, and preparing it needs "
            f"TensorFlow. Prepare it once where TensorFlow is installed, with "
            f"tfds.builder({name!r}, data_dir=..., file_format='array_record')"
            ".download_and_prepare(), and set data_dir to that folder."
        )
    return read_prepared(name, prepared)


def tfds_folder(data_dir: Path | None) -> Path:
    """Return `data_dir`, or TFDS's default folder for None."""
    if data_dir is not None:
        return data_dir
    return as_path("TFDS_DATA_DIR", os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def find_prepared(name: str, data_dir: Path) -> Path | None:
    """Return the folder of the newest prepared version of a TFDS data set, or None.

    Looks only at folder names and imports nothing, so it takes no time if nothing is prepared.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise InputError(f"A TFDS name is NAME, NAME/CONFIG or NAME:1.0.0, got {name!r}.")
    root = data_dir / match["name"]
    if match["config"]:
        root /= match["config"]
    versions = _versions(root, match["version"])
    if not versions and not match["config"] and root.is_dir():
        configs = sorted(p.name for p in root.iterdir() if p.is_dir() and _versions(p, None))
        if configs:
            raise InputError(
                f"TFDS data set {name!r} is prepared in {len(configs)} configurations: name one, "
                f"such as {match['name']}/{configs[0]}. Found: {', '.join(configs)}."
            )
    return max(versions, key=lambda p: [int(n) for n in p.name.split(".")], default=None)


def _versions(root: Path, version: str | None) -> list[Path]:
    places = root.glob("*.*.*") if version is None else [root / version]
    return [
        folder
        for folder in places
        if re.fullmatch(r"\d+\.\d+\.\d+", folder.name) and (folder / "dataset_info.json").is_file()
    ]


def read_prepared(name: str, folder: Path) -> Dataset:
    """Make a `Dataset` from the folder of a prepared version."""
    for place in folder.iterdir():
        if not place.is_dir():
            require_file(place)
    _check_classes(folder / "features.json")
    with reading(folder, "a prepared TFDS data set"), _without_warnings():
        return _read(name, folder)


def _check_classes(path: Path) -> None:
    """Refuse classes that aren't TFDS's own: TFDS would import, and so run, what they name."""
    open_parts = [read_json(path)] if path.exists() else []
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, dict):
            for key in part.keys() & {"pythonClassName", "python_class_name", "type"}:
                named = part[key]
                if isinstance(named, str) and not named.startswith("tensorflow_datasets."):
                    raise InputError(
                        f"{path} names the class {named[:100]!r}, which isn't TFDS's own."
                    )
            part = list(part.values())
        open_parts += part if isinstance(part, list) else []


def _read(name: str, folder: Path) -> Dataset:
    import tensorflow_datasets as tfds  # slow import: only where it is used

    builder = tfds.builder_from_directory(folder)
    features, image, label = _features(name, tfds, builder)
    connector = features[label]
    found = list(builder.info.splits)
    if "train" not in found:
        held = ", ".join(found) or "none"
        raise InputError(f"TFDS data set {name!r} has no split 'train'; splits found: {held}.")
    held_out = [split for split in ("test", "validation", "val", "valid") if split in found][:1]
    unused = unused_note([split for split in found if split not in ("train", *held_out)])

    def make():
        arrays = {}
        for ours, split in zip(("train", "test"), ("train", *held_out), strict=False):
            x, y = _read_split(name, builder, split, image, label)
            arrays |= {f"{ours}_x": x, f"{ours}_y": y}
        return arrays

    family, _, config = name.partition(":")[0].partition("/")
    files = sorted(p for p in folder.iterdir() if not p.is_dir())
    recipe = f"{image} {label}" if held_out in ([], ["test"]) else f"{image} {label} {held_out}"
    arrays = cached_arrays(f"tfds-{family}", folder, hash_of(files, recipe), make)
    note = "in the order of TFDS"
    if family == "emnist" and config in EMNIST_CLASSES and held_out:
        return emnist_from_arrays(config, **arrays, note=note)
    names = tuple(connector.names) if connector.num_classes else ()
    if "id" in features and family in ("cifar10", "cifar100"):
        note = ""
    return dataset_from_arrays(
        name,
        **arrays,
        num_classes=connector.num_classes,
        class_names=() if names == tuple(map(str, range(len(names)))) else names,
        note=notes(note, unused),
    )


def _features(name: str, tfds, builder) -> tuple[Mapping[str, Any], str, str]:
    """Return (all features, name of the image, name of the label)."""
    features = builder.info.features
    keys = builder.info.supervised_keys or ("image", "label")
    image, label = (keys[0], keys[1]) if len(keys) == 2 else ("image", "label")
    good = (
        isinstance(features, tfds.features.FeaturesDict)
        and {image, label} <= set(features)
        and isinstance(features[image], tfds.features.Image)
        and isinstance(features[label], tfds.features.ClassLabel)
    )
    if not good:
        held = ", ".join(features) if isinstance(features, tfds.features.FeaturesDict) else features
        raise InputError(
            f"TFDS data set {name!r} must have an image and a class label, got the features {held}."
        )
    return features, image, label


def _read_split(name: str, builder, split: str, image: str, label: str):
    """Return images and labels of a split; CIFAR's in file order, by their `id`."""
    try:
        source = builder.as_data_source(split=split)
    except NotImplementedError as error:
        raise InputError(
            f"TFDS data set {name!r} in {builder.data_dir} is stored as "
            f"{builder.info.file_format.value}, which needs TensorFlow to read: prepare it again "
            "with file_format='array_record', into another data_dir."
        ) from error
    count = len(source)
    if count == 0:
        raise InputError(f"Split {split!r} of {builder.data_dir} is empty.")
    first = source[0][image]
    require_memory(f"{count:,} images of the shape {first.shape}", count * (first.size + 16))
    x, y = np.empty((count, *first.shape), np.uint8), np.empty(count, np.int64)
    order = np.arange(count)
    # One call for many rows takes less than half the time of one call for each.
    chunk = int(np.clip(_BYTES // max(first.size, 1), 1, _CHUNK))
    for start in range(0, count, chunk):
        rows = range(start, min(start + chunk, count))
        for i, example in zip(rows, source.__getitems__(list(rows)), strict=True):
            pixels = example[image]
            if pixels.shape != x.shape[1:] or pixels.dtype != np.uint8:
                raise InputError(
                    f"Images of TFDS data set {name!r} must be uint8 of one shape, got "
                    f"{x.shape[1:]} and {pixels.dtype} {pixels.shape}."
                )
            x[i], y[i] = pixels, example[label]
            if builder.name in ("cifar10", "cifar100") and "id" in example:
                order[i] = int(example["id"].decode().rpartition("_")[2])
    if np.array_equal(order, np.arange(len(order))):
        return x, y
    back = np.argsort(order, kind="stable")
    return x[back], y[back]


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress TFDS's warnings, such as that OpenCV would decode images faster."""
    from absl import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
