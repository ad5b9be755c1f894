"""Parquet files with image bytes, as `datasets` on the Hugging Face hub are stored."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_pfl.data.cache import cached_arrays, hash_of
from fedjax_pfl.data.columns import column_names
from fedjax_pfl.data.csv_files import check_header
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.image_decoding import ImageSize, decode_images, parse_size
from fedjax_pfl.data.parquet_files import (
    holds_images,
    image_bytes,
    integers,
    open_parquet,
    row_groups,
)
from fedjax_pfl.data.sources.source_registry import folders, not_found, register_dataset
from fedjax_pfl.data.sources.splits import notes, splits, unused_note
from fedjax_pfl.data.tables import as_words, is_parquet, read_header, read_table
from fedjax_pfl.utils.errors import InputError

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label", "labels")


@register_dataset("cifar10_jpeg", "CIFAR-10 made lossy (JPEG in Parquet files): not CIFAR-10")
def load_cifar10_jpeg(data_dir: Path | None) -> Dataset:
    """CIFAR-10 re-encoded as JPEG in Parquet files: lossy, and in an unknown order.

    Accuracies on it aren't comparable with those on CIFAR-10.
    """
    places = folders(data_dir, "cifar10_jpeg")
    for place in places:
        if _files(place):
            note = "JPEG-compressed, so lossy: not comparable with CIFAR-10; order unknown"
            return _load("cifar10_jpeg", place, None, 3, ("image", "label"), 10, note=note)
    way = "set data_dir to a folder with train*.parquet and test*.parquet"
    raise not_found("cifar10_jpeg", places, way)


@register_dataset(
    "parquet",
    "your own images, parquet:PATH with train*.parquet files",
    needs="the path of a folder",
)
def load_parquet(
    data_dir: Path,
    image_size: ImageSize = None,
    channels: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    num_classes: int | None = None,
    id_columns: str = "",
) -> Dataset:
    """A folder with train*.parquet (and test*.parquet) files, directly or in its folder `data`.

    Without test files those of validation are the test samples; the data set's note names files
    that are not used.

    Args:
      data_dir: the folder.
      image_size: size of all images (see `fedjax_pfl.data.image_decoding.decode_images`).
      channels: 1 (grey), 3 (colour), or None: grey if all images are.
      image_column: bytes, or a struct with a field `bytes`; None takes `image` or `img`.
      label_column: integers 0..C-1; None takes `label`, `fine_label` or `labels`.
      num_classes: C; None takes the number of names in the file, else the largest label + 1.
      id_columns: columns for the rule `by_column`, such as "writer_id".
    """
    columns = (image_column, label_column)
    place, *others = (data_dir, data_dir / "data") if _files(data_dir) else (data_dir / "data",)
    if not _files(place):
        raise InputError(f"{data_dir} holds no .parquet files.")
    note = unused_note([f"data/{path.name}" for other in others for path in _files(other)])
    name, options = data_dir.resolve().name, (image_size, channels, columns, num_classes)
    return _load(name, place, *options, id_columns, note)


def _files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, which may not exist."""
    return sorted(path for path in folder.glob("*.*") if is_parquet(path))


def _load(
    name, folder, image_size, channels, columns, num_classes, id_columns="", note=""
) -> Dataset:
    size = parse_size(image_size)
    files = _files(folder)
    parts = splits(files)
    train, test = parts.train, parts.held_out
    if not train:
        found = ", ".join(path.name for path in files[:5])
        raise InputError(f"{folder} has no train*.parquet; Parquet files found: {found}.")

    def make():
        arrays = {}
        for split, files in (("train", train), ("test", test)):
            if files:
                x, y = _decode(files, columns, size, channels)
                arrays |= {f"{split}_x": x, f"{split}_y": y}
        return arrays

    _check_shards(folder, train + test)
    columns = _, label = _columns(train[0], open_parquet(train[0]).schema_arrow, columns)
    recipe = f"{size} {channels} {columns} {len(train)}"
    arrays = cached_arrays(name, folder, hash_of(train + test, recipe), make)
    named = {own: path for path in train + test if (own := _class_names(path, label))}
    if len(named) > 1:
        one, other = [*named.values()][:2]
        raise InputError(f"{one} and {other} must name the same classes of {label!r} in one order.")
    names = next(iter(named), ())
    classes = (len(names) or None) if num_classes is None else num_classes
    kept: dict[str, list[np.ndarray]] = {}
    for path in train + test if id_columns else ():
        header = read_header(path)
        known = column_names(id_columns, header.names, path)
        for column, values in read_table(path, header, (), known).items():
            words = as_words(path, column, values)
            kept.setdefault(column, []).append(words.values[words.rows])
    return dataset_from_arrays(
        name,
        **arrays,
        num_classes=classes,
        class_names=names if len(names) == classes else (),
        note=notes(note, parts.note()),
        columns={column: np.concatenate(part) for column, part in kept.items()},
    )


def _check_shards(folder: Path, files: list[Path]) -> None:
    """Raise `InputError` if a part of a split is missing, or beside the whole."""
    found: dict[str, list[tuple[int, int]]] = {}
    for path in files:
        words = re.split(r"-(\d+)-of-(\d+)", path.stem, maxsplit=1)
        split, k, count = (*words[:3], 0, 1)[:3]
        found.setdefault(str(split), []).append((int(k), int(count)))
    for split, parts in found.items():
        low, n = min(parts)[0], len(parts)
        if sorted(parts) != [(k, n) for k in range(low, low + n)]:
            count = max(count for _, count in parts)
            raise InputError(
                f"{folder} must have each of the {count} parts of {split!r} once, or only one file "
                f"with all samples, got {n} files."
            )


def _decode(files, columns, size, channels) -> tuple[np.ndarray, np.ndarray]:
    opened = [(path, open_parquet(path)) for path in files]
    count = sum(file.metadata.num_rows for _, file in opened)
    if count == 0:
        raise InputError(f"{files[0]} has no rows.")
    labels: list[np.ndarray] = []
    images = (row for path, file in opened for row in _rows(path, file, columns, labels))
    decoded = decode_images(images, count, size, channels)
    return decoded, np.concatenate(labels).astype(np.int64)


def _rows(path: Path, file, columns, labels: list[np.ndarray]) -> Iterator[tuple[str, bytes]]:
    """Yield (name in messages, encoded image); appends the labels on the way."""
    schema = file.schema_arrow
    check_header(path, schema.names)
    image, label = _columns(path, schema, columns)
    kind = schema.field(image).type
    if not holds_images(kind):
        raise InputError(f"Column {image!r} of {path} must hold image bytes, got {kind}.")
    row = 0
    for table in row_groups(path, (image, label)):
        labels.append(integers(path, table, label))
        for content in image_bytes(table[image]):
            row += 1
            if not content:
                raise InputError(f"Row {row} of {path} has no image bytes.")
            yield f"Row {row} of {path}", content


def _columns(path: Path, schema, names) -> tuple[str, str]:
    """Return the names of the columns of images and labels."""
    image = _column(path, schema, names[0], _IMAGE_COLUMNS, "image bytes")
    return image, _column(path, schema, names[1], _LABEL_COLUMNS, "integer labels")


def _column(path: Path, schema, name: str | None, usual: tuple[str, ...], what: str) -> str:
    candidates = usual if name is None else (str(name),)
    for candidate in candidates:
        if candidate in schema.names:
            return candidate
    option = "image_column" if usual is _IMAGE_COLUMNS else "label_column"
    raise InputError(
        f"{path} has no column of {what} called {' or '.join(candidates)}; its columns: "
        f"{', '.join(schema.names) or 'none'}. Give {option}."
    )


def _class_names(path: Path, label: str) -> tuple[str, ...]:
    """Return the class names in the file's metadata, if any."""
    metadata = open_parquet(path).schema_arrow.metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        names = features[label]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    good = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if good else ()
