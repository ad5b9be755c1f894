"""Partitions that other tools saved: folders of PFLlib's and FL-bench's, Flower's lists or folders.

Nothing is ever unpickled. Where a tool saves samples instead of indices, they are matched to the
pool by content: see `fedjax_pfl.data.partitions.matching`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.files import as_path, read_json, reading
from fedjax_pfl.data.partitions.arrow import read_rows
from fedjax_pfl.data.partitions.flbench import import_flbench
from fedjax_pfl.data.partitions.held_out import held_out
from fedjax_pfl.data.partitions.matching import Matcher, pixels
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import integer, is_number
from fedjax_pfl.data.pfllib_files import read_clients, read_config
from fedjax_pfl.utils.conversions import keyword_defaults
from fedjax_pfl.utils.errors import InputError, require, unknown_name


class Importer(NamedTuple):
    """A row of `IMPORTERS`: one line for people, and `load(path, dataset, *, option=default)`.

    The partition's `options` hold every option that was read; other options given are refused.
    """

    description: str
    load: Callable[..., Partition]

    @property
    def options(self) -> dict[str, Any]:
        """The importer's options and their defaults."""
        return keyword_defaults(self.load)


def import_partition(source: str, path: str | Path, dataset: Dataset, **options: Any) -> Partition:
    """Reads another tool's saved split as a partition of a data set's pool.

    Args:
      source: a name in `IMPORTERS`.
      path: the file or folder that the tool wrote.
      dataset: the data set that was split.
      **options: keyword arguments of the importer.

    Raises:
      InputError: an unknown source, files of another form, or samples that the
        data set doesn't have.
    """
    if source not in IMPORTERS:
        raise unknown_name("source of saved splits", source, IMPORTERS)
    known = IMPORTERS[source].options
    for name in options:
        if name not in known:
            raise unknown_name(f"option of importer {source!r}", name, known)
    place = as_path("Path of a split", path)
    with reading(place):
        partition = IMPORTERS[source].load(place, dataset, **options)
    for name in options:
        if name not in partition.options:
            raise InputError(f"{name} has no effect on the split in {place}: leave it out.")
    partition.validate(len(dataset.labels), dataset.num_classes, dataset.labels)
    return partition


def import_pfllib(
    folder: Path, dataset: Dataset, *, mean: float = 0.5, std: float = 0.5
) -> Partition:
    """A split that PFLlib's `generate_*.py` wrote: config.json, train/ID.npz, test/ID.npz.

    Those NPZ files hold pickled Python objects, which this project never loads: run the three lines
    of `pfllib_files.PFLLIB_EXPORT` where you trust the files. They write `ID.plain.npz` with the
    plain arrays x and y beside each, and those are read here. PFLlib saves normalised copies of the
    samples, so they are turned back into pixels and found in the pool. Where the pool holds a
    sample several times, its copies are taken in order; `options["ambiguous_samples"]` counts such
    choices.

    Args:
      folder: with config.json, train and test.
      dataset: the data set that was split, its training and test samples.
      mean, std: of the `Normalize` of the script: pixel = 255 * (x * std + mean).

    Raises:
      InputError: files missing, not exported or not of this data set, or a data set of texts.
    """
    if dataset.vocab_size is not None:
        raise InputError(
            f"PFLlib's splits of texts can't be read: it saves token ids of a vocabulary of its "
            f"own, from which no text of data set {dataset.name!r} can be told. Its rules are here "
            "too: partition 'pat' and 'dirichlet'."
        )
    config = read_config(folder)
    for name, value in (("mean", mean), ("std", std)):
        require(is_number(value) and np.isfinite(value), name, value, "a finite number")
    matcher = Matcher(dataset)
    lists, scaled = {}, False
    for split in ("train", "test"):
        lists[split] = []
        for what, x, y in read_clients(folder, split, config["num_clients"]):
            found = pixels(x, dataset, what, mean, std)
            scaled |= x.dtype != found.dtype
            lists[split].append(matcher.match(found, y, what))
    _check_counts(config, lists, dataset)
    options = {"path": str(folder), "ambiguous_samples": matcher.ambiguous}
    if scaled:
        options |= {"mean": mean, "std": std}
    return Partition.from_lists(**lists, rule="pfllib", options=options)


def _check_counts(config: dict, lists: dict, dataset: Dataset) -> None:
    """Compares with the class counts that PFLlib noted, training and test samples together."""
    key = "Size of samples for labels in clients"
    noted = config.get(key)
    if noted is None:
        return
    n = len(lists["train"])
    pairs = isinstance(noted, list) and len(noted) == n and all(map(_are_pairs, noted))
    if not pairs:
        raise InputError(
            f"{key!r} in config.json must be a list of {n} lists, one for each client, of pairs "
            "[class, samples]: is the file damaged? Without that entry nothing is compared."
        )
    for client, (row, *parts) in enumerate(zip(noted, *lists.values(), strict=True)):
        labels = dataset.labels[np.concatenate(parts)]
        found = {
            int(c): int(k) for c, k in zip(*np.unique(labels, return_counts=True), strict=True)
        }
        if found != dict(row):
            raise InputError(
                f"Client {client} holds other classes than its config.json says "
                f"({str(row)[:200]}): the files are of another split."
            )


def _are_pairs(row) -> bool:
    return isinstance(row, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)
        for pair in row
    )


def import_flower(
    path: Path,
    dataset: Dataset,
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    index_column: str = "index",
) -> Partition:
    """A split made with flwr-datasets: a JSON file of indices, or a folder of partitions.

    JSON: `{"0": [indices], "1": [...]}`, as `partitioner.partition_id_to_indices` gives them, of
    the official training samples; or `{"train": {...}, "test": {...}}`, the latter of the official
    test samples. Beware: `FederatedDataset` shuffles by default, and its indices are then of the
    shuffled samples; give it shuffle=False, or save the partitions themselves.

    A folder: one entry for each partition whose name ends in its number, such as `partition_0`;
    each a Parquet file, or a folder of Parquet or Arrow files (`save_to_disk`), which may have the
    folders `train` and `test`. Rows with an integer column `index_column` are pool indices; others
    must have encoded images, which are decoded and looked up in the pool.

    Args:
      path: the file or the folder.
      dataset: the data set that was split.
      test_fraction: part of each client's samples held out at random, where the split has no test
        samples; 0 for none.
      seed: of the held-out parts.
      index_column: name of the column of indices, of a folder.

    Raises:
      InputError: not one of these forms, or not of this data set.
    """
    inside = is_number(test_fraction) and 0 <= test_fraction < 1
    require(inside, "test_fraction", test_fraction, "a number at least 0 and below 1")
    seed = integer("seed", seed, 0)
    matcher = Matcher(dataset)
    if path.is_dir():
        train, test = _read_folder(path, dataset, matcher, index_column)
        options: dict[str, Any] = {"path": str(path), "index_column": index_column}
    else:
        train, test = _read_indices(path, dataset)
        options = {"path": str(path)}
    options["ambiguous_samples"] = matcher.ambiguous
    if test is None:
        options |= {"test_fraction": test_fraction, "seed": seed}
        train, test = _hold_out(train, test_fraction, seed)
    return Partition.from_lists(train, test, rule="flower", options=options, allow_overlap=True)


def _read_indices(path: Path, dataset: Dataset) -> tuple[list, list | None]:
    content = read_json(path)
    named = isinstance(content, dict) and len(content) > 0
    require(named, f"Content of {path}", type(content).__name__,
            "an object with the indices of each partition")  # fmt: skip
    if "train" not in content:
        return _numbered(content, path, 0, dataset.num_train), None
    train = _numbered(content["train"], path, 0, dataset.num_train)
    if not content.get("test"):
        return train, None
    test = _numbered(content["test"], path, dataset.num_train, dataset.num_test)
    require(len(test) == len(train), f"Test partitions in {path}", len(test), f"{len(train)}")
    return train, test


def _numbered(content, path: Path, start: int, count: int) -> list[np.ndarray]:
    if not isinstance(content, dict) or set(content) != {str(k) for k in range(len(content))}:
        shown = list(content)[:5] if isinstance(content, dict) else type(content).__name__
        raise InputError(
            f"Partitions in {path} must be numbered 0, 1, 2, ..., got {str(shown)[:200]}."
        )
    lists = []
    for k in range(len(content)):
        given = content[str(k)]
        fits = isinstance(given, list) and all(type(i) is int and 0 <= i < count for i in given)
        if not fits:
            raise InputError(f"Partition {k} in {path} must be a list of integers 0..{count - 1}.")
        lists.append(start + np.sort(np.array(given, np.int64)))
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
    train, test = [], []
    for k in range(len(entries)):
        entry = entries[k]
        parts = [entry / name for name in ("train", "test")]
        if not parts[0].is_dir():
            parts = [entry]
        for part, lists in zip(parts, (train, test), strict=False):
            if part.exists():
                lists.append(read_rows(part, dataset, matcher, index_column))
    require(
        len(test) in (0, len(train)), f"Test parts in {folder}", len(test), f"0 or {len(train)}"
    )
    return train, test or None


def _hold_out(lists: list[np.ndarray], fraction: float, seed: int):
    train, test = [], []
    for client, samples in enumerate(lists):
        shuffled = np.random.default_rng([seed, client]).permutation(samples)
        first, rest = np.split(shuffled, [held_out(fraction, len(samples))])
        test.append(np.sort(first))
        train.append(np.sort(rest))
    return train, test


IMPORTERS: dict[str, Importer] = {
    "pfllib": Importer(
        "a folder of PFLlib's, its NPZ files exported as plain arrays", import_pfllib
    ),
    "flbench": Importer(
        "a folder of FL-bench's data, its partition exported as JSON", import_flbench
    ),
    "flower": Importer("flwr-datasets: a JSON file of indices, or a folder", import_flower),
}
