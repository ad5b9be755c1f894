"""Partitions that FL-bench's `generate_data.py` saved: data/NAME/partition.pkl.

That file is a pickle, which is never loaded. The lines of Python in `FLBENCH_EXPORT` write its
lists of indices to `partition.json` beside it.
"""

from pathlib import Path

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.files import read_json
from fedjax_pfl.data.partitions.matching import check_class_counts, index_list
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
    """Return whether a folder has the file names of FL-bench."""
    return any((folder / name).is_file() for name in (PICKLE, LISTS))


def import_flbench(folder: Path, dataset: Dataset) -> Partition:
    """A split that FL-bench's `generate_data.py` wrote into a folder of its `data`.

    Its indices count the training samples, then the test samples of torchvision's data set, which
    are in the order of the published files, as here. Samples per class are compared with
    `all_stats.json` if it exists.

    Args:
      folder: folder with partition.json, which `FLBENCH_EXPORT` writes.
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
            what = f"{theirs!r} of client {client} in {path}"
            lists[ours].append(index_list(what, parts.get(theirs, []), pool))
    statistics = folder / STATISTICS
    recorded = read_json(statistics) if statistics.exists() else None
    if isinstance(recorded, dict):
        rows = [recorded.get(str(client)) for client in range(len(clients))]
        counts = [row.get("y") if isinstance(row, dict) else None for row in rows]
        check_class_counts(counts, [*lists.values()], dataset, statistics)
    return Partition.from_lists(
        lists["train"], lists["test"], lists["validation"],
        rule="flbench", options={"path": str(folder)},
    )  # fmt: skip
