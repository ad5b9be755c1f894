"""Partitions that FL-bench's `generate_data.py` saved: data/NAME/partition.pkl.

That file is a pickle, which is never loaded here. Four lines of Python, `FLBENCH_EXPORT`, write its
lists of indices to `partition.json` beside it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.files import read_json
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.utils.errors import InputError, shown

PICKLE, LISTS, STATISTICS = "partition.pkl", "partition.json", "all_stats.json"
FLBENCH_EXPORT = """\
import json, pathlib, pickle
folder = pathlib.Path({folder!r})
clients = pickle.loads((folder / "partition.pkl").read_bytes())["data_indices"]
plain = [{{name: list(map(int, part)) for name, part in one.items()}} for one in clients]
(folder / "partition.json").write_text(json.dumps(plain))"""
SPLITS = {"train": "train", "val": "validation", "test": "test"}  # ours by theirs


def is_flbench(folder: Path) -> bool:
    """Whether FL-bench wrote it, as far as the names in it say."""
    return any((folder / name).is_file() for name in (PICKLE, LISTS))


def import_flbench(folder: Path, dataset: Dataset) -> Partition:
    """A split that FL-bench's `generate_data.py` wrote into a folder of its `data`.

    Its indices count the training samples, then the test samples, of torchvision's data set, which
    are in the order of the published files, as here. Samples by class are compared with
    `all_stats.json`, where there is one.

    Args:
      folder: with partition.json, which `FLBENCH_EXPORT` writes.
      dataset: the data set that was split.

    Raises:
      InputError: not exported, not such a file, or of another data set.
    """
    path = folder / LISTS
    if not path.exists() and (folder / PICKLE).exists():
        raise InputError(
            f"{folder / PICKLE} is a pickle, which is never loaded here. If you trust it, export "
            "its indices with these lines of Python, and try again:",
            script=FLBENCH_EXPORT.format(folder=str(folder)),
        )
    clients = read_json(path)
    pool = len(dataset.labels)
    if not (isinstance(clients, list) and clients):
        raise InputError(f"{path} must be a list with an object for each client.")
    lists: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS.values()}
    for client, parts in enumerate(clients):
        if not (isinstance(parts, dict) and parts.keys() <= SPLITS.keys()):
            raise InputError(
                f"Client {client} in {path} must be an object with lists "
                f"{', '.join(SPLITS)}, got {shown(parts)}."
            )
        for theirs, ours in SPLITS.items():
            given = parts.get(theirs, [])
            if not (
                isinstance(given, list) and all(type(i) is int and 0 <= i < pool for i in given)
            ):
                raise InputError(
                    f"{theirs!r} of client {client} in {path} must be a list of integers "
                    f"0..{pool - 1}: is {dataset.name!r} the data set that was split?"
                )
            lists[ours].append(np.sort(np.array(given, np.int64)))
    _check_counts(folder / STATISTICS, lists, dataset)
    return Partition.from_lists(
        lists["train"], lists["test"], lists["validation"],
        rule="flbench", options={"path": str(folder)},
    )  # fmt: skip


def _check_counts(path: Path, lists: dict[str, list[np.ndarray]], dataset: Dataset) -> None:
    """Compares with the class counts that FL-bench noted for each client, all parts together."""
    if not path.exists():
        return
    noted: Any = read_json(path)
    for client in range(len(lists["train"])):
        row = noted.get(str(client)) if isinstance(noted, dict) else None
        wanted = row.get("y") if isinstance(row, dict) else None
        if not isinstance(wanted, dict):
            continue
        labels = dataset.labels[np.concatenate([part[client] for part in lists.values()])]
        found = {
            str(c): int(k) for c, k in zip(*np.unique(labels, return_counts=True), strict=True)
        }
        if found != {c: k for c, k in wanted.items() if k}:
            raise InputError(
                f"Client {client} holds other classes than {path} says: data set "
                f"{dataset.name!r} is not the one that was split, or has another order."
            )
