"""Splits made with flwr-datasets: a JSON file of indices, or a folder of saved partitions."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.csv_files import check_header
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.files import read_json
from fedjax_pfl.data.image_decoding import decode_images
from fedjax_pfl.data.parquet_files import (
    holds_images,
    image_bytes,
    integers,
    open_parquet,
    row_groups,
)
from fedjax_pfl.data.partitions.held_out import held_out
from fedjax_pfl.data.partitions.matching import Matcher, index_list, pixels
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import is_number
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.utils.errors import InputError, require, require_name, require_whole

_SPLITS = {
    "train": "train",
    "test": "test",
    **dict.fromkeys(("validation", "valid", "val"), "validation"),
}
_LABELS = ("label", "labels", "fine_label", "character")


def import_flower(
    path: Path,
    dataset: Dataset,
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    index_column: str = "index",
) -> Partition:
    """A split made with flwr-datasets: a JSON file of indices, or a folder of partitions.

    JSON: `{"0": [indices], "1": [...]}` of official training samples, as in
    `partitioner.partition_id_to_indices`, or `{"train": {...}, "test": {...}}`, the latter of
    official test samples; "validation", too, is of official training samples. `FederatedDataset`
    shuffles by default, and its indices are then those
    of the shuffled samples: use shuffle=False, or save the partitions themselves.

    A folder: one entry for each partition, whose name ends in its number, such as `partition_0`.
    It is a Parquet file (`to_parquet`) or a folder of them, perhaps in the folders `train`, `test`
    and `validation`. An integer column `index_column` contains pool
    indices; otherwise rows need encoded images, which are decoded and looked up in the pool.

    Args:
      path: the file or the folder.
      dataset: the data set that was split.
      test_fraction: part of each client's samples held out at random if the split has no test
        samples; 0 for none.
      seed: seed of the held-out parts.
      index_column: name of the column of indices in a folder's files.

    Raises:
      InputError: not one of these forms, or not of this data set.
    """
    inside = is_number(test_fraction) and 0 <= test_fraction < 1
    require(inside, "test_fraction", test_fraction, "a number at least 0 and below 1")
    seed = require_whole("seed", seed, 0)
    matcher = Matcher(dataset)
    if path.is_dir():
        parts = _read_folder(path, dataset, matcher, index_column)
        options: dict[str, Any] = {"path": str(path), "index_column": index_column}
    else:
        parts = _read_indices(path, dataset)
        options = {"path": str(path)}
    for k, lists in enumerate(zip(*parts.values(), strict=True)):
        shared = sum(len(np.unique(one)) for one in lists) - len(np.unique(np.concatenate(lists)))
        what = f"Splits of partition {k} in {path}"
        require(shared == 0, what, f"{shared} samples in two of them", "of different samples")
    options["ambiguous_samples"] = matcher.ambiguous
    if "test" not in parts:
        options |= {"test_fraction": test_fraction, "seed": seed}
        parts["train"], parts["test"] = _hold_out(parts["train"], test_fraction, seed)
    return Partition.from_lists(**parts, rule="flower", options=options, allow_overlap=True)


def _read_indices(path: Path, dataset: Dataset) -> dict[str, list[np.ndarray]]:
    content = read_json(path)
    allowed = "an object with the indices of each partition"
    require(len(content) > 0, f"Content of {path}", content, allowed)
    if not content.keys() & _SPLITS.keys():
        return {"train": _numbered(content, path, 0, dataset.num_train)}
    parts = {}
    for name, own in content.items():
        require_name(f"split in {path}:", name, _SPLITS)
        split = _SPLITS[name]
        require(split not in parts, f"Split {split!r} in {path}", f"{name!r}, too", "there once")
        official = (dataset.num_train, dataset.num_test) if split == "test" else (
            0, dataset.num_train
        )  # fmt: skip
        if own or split == "train":
            parts[split] = _numbered(own, path, *official)
    return _alike(parts, path)


def _alike(parts: dict[str, list[np.ndarray]], where: Path) -> dict[str, list[np.ndarray]]:
    """Check that each split has a list for each client."""
    count = len(parts.get("train", ()))
    require(count > 0, f"Training partitions in {where}", count, "at least 1")
    for split, lists in parts.items():
        require(
            len(lists) == count, f"{split.title()} partitions in {where}", len(lists), f"{count}"
        )
    return parts


def _numbered(content, path: Path, start: int, count: int) -> list[np.ndarray]:
    if not isinstance(content, dict) or set(content) != {str(k) for k in range(len(content))}:
        shown = list(content)[:5] if isinstance(content, dict) else type(content).__name__
        raise InputError(
            f"Partitions in {path} must be numbered 0, 1, 2, ..., got {str(shown)[:200]}."
        )
    lists = []
    for k in range(len(content)):
        lists.append(start + index_list(f"Partition {k} in {path}", content[str(k)], count))
    return lists


def _read_folder(folder: Path, dataset: Dataset, matcher: Matcher, index_column: str):
    entries = {}
    for entry in sorted(folder.iterdir()):
        number = re.search(r"(\d+)$", entry.stem)
        if number and (entry.is_dir() or entry.suffix == ".parquet"):
            first = entries.setdefault(int(number[1]), entry)
            require(first == entry, f"Partition {int(number[1])} in {folder}", entry.name, "one")
    if sorted(entries) != list(range(len(entries))) or not entries:
        raise InputError(
            f"Partitions in {folder} must be files or folders whose names end in 0, 1, 2, ..., got "
            f"{[entry.name for entry in folder.iterdir()][:5]}."
        )
    parts: dict[str, list[np.ndarray]] = {}
    for k in range(len(entries)):
        entry = entries[k]
        inside = sorted(path for path in entry.iterdir() if path.is_dir()) if entry.is_dir() else []
        own = {"train": entry}
        if inside:
            for place in inside:
                require_name(f"split in {entry}:", place.name, _SPLITS)
            own = {_SPLITS[place.name]: place for place in inside}
            require(len(own) == len(inside), f"Splits in {entry}", [*own], "there once each")
        for split in sorted(own, key=SPLITS.index):
            rows = _read_rows(own[split], dataset, matcher, index_column)
            parts.setdefault(split, []).append(rows)
    return _alike(parts, folder)


def _hold_out(lists: list[np.ndarray], fraction: float, seed: int):
    train, test = [], []
    for client, samples in enumerate(lists):
        shuffled = np.random.default_rng([seed, client]).permutation(samples)
        first, rest = np.split(shuffled, [held_out(fraction, len(samples))])
        test.append(np.sort(first))
        train.append(np.sort(rest))
    return train, test


def _read_rows(part: Path, dataset: Dataset, matcher: Matcher, index_column: str) -> np.ndarray:
    """Return the pool indices of a saved partition, ascending.

    Args:
      part: a Parquet file, or a folder with Parquet files.
      dataset: the data set that was split.
      matcher: of that data set; finds images if there is no column of indices.
      index_column: name of that column.
    """
    files = sorted(part.glob("*.parquet")) if part.is_dir() else [part]
    if not files:
        arrow = any(part.glob("*.arrow"))
        how = ": save partitions with to_parquet, not with save_to_disk" if arrow else ""
        raise InputError(f"{part} holds no .parquet file{how}.")
    pieces, labels, rows, top = [], [], 0, len(dataset.labels) - 1
    for path in files:
        file = open_parquet(path)
        rows += file.metadata.num_rows
        if rows > top + 1:
            raise InputError(f"{part} has more rows than the {top + 1} samples of the data set.")
        schema = file.schema_arrow
        check_header(part, schema.names)
        if index_column in schema.names:
            parts = [integers(part, t, index_column) for t in row_groups(path, [index_column])]
            column = np.concatenate([np.zeros(0, np.int64), *parts])
            shown = f"{column.min()}..{column.max()}" if len(column) else None
            known = len(column) == 0 or (column.min() >= 0 and column.max() <= top)
            require(known, f"Column {index_column!r} of {part}", shown, f"in 0..{top}")
            pieces.append(column.astype(np.int64))
            continue
        images = [name for name in schema.names if holds_images(schema.field(name).type)]
        if len(images) != 1:
            raise InputError(
                f"{part} has neither a column {index_column!r} of indices nor one of encoded "
                f"images; columns found: {', '.join(schema.names[:20])}."
            )
        label = [name for name in _LABELS if name in schema.names][:1]
        for table in row_groups(path, [*images, *label]):
            labels.append(integers(part, table, *label) if label else None)
            contents = enumerate(image_bytes(table[images[0]]), sum(map(len, pieces)))
            named = ((f"Image {i} of {part}", content) for i, content in contents)
            decoded = decode_images(named, len(table), channels=dataset.input_shape[-1])
            pieces.append(pixels(decoded, dataset, f"images of {part}", 0.5, 0.5))
    if not labels:
        return np.sort(np.concatenate([np.zeros(0, np.int64), *pieces]))
    if len(labels) < len(pieces) or len({one is None for one in labels}) > 1:
        raise InputError(f"Files of {part} must have the same columns.")
    y = None if labels[0] is None else np.concatenate(labels)
    return matcher.match(np.concatenate(pieces), y, f"images of {part}")
