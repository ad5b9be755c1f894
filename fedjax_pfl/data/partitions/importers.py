"""Import of partitions that PFLlib and flwr-datasets saved, or FL-bench, exported as one of ours.

Nothing is unpickled. If a tool saves samples instead of indices, they are looked up in the pool by
their content, see `fedjax_pfl.data.partitions.matching`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.files import as_path, reading
from fedjax_pfl.data.partitions.from_flower import import_flower
from fedjax_pfl.data.partitions.from_pfllib import import_pfllib
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.pfllib_files import check_export, is_pfllib
from fedjax_pfl.data.sources.leaf import leaf_files
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import keyword_defaults
from fedjax_pfl.utils.errors import InputError, find_name, require_name

# FL-bench's file, a pickle; and what the lines below write beside it.
FLBENCH, EXPORTED = "partition.pkl", "partition.npz"
FLBENCH_EXPORT = """\
import numpy as np, pathlib, pickle
folder = pathlib.Path({folder!r})
clients = pickle.loads((folder / "partition.pkl").read_bytes())["data_indices"]
arrays = {{}}
for split in ("train", "val", "test"):
    lists = [np.sort(client[split]).astype(int) for client in clients]
    arrays[split + "_idx"] = np.concatenate(lists)
    arrays[split + "_offsets"] = np.cumsum([0, *map(len, lists)])
np.savez(folder / "partition.npz", **arrays)"""


class Importer(NamedTuple):
    """Row of `IMPORTERS`.

    Attributes:
      description: one line.
      load: `load(path, dataset, *, option=default) -> Partition`; the partition's `options` contain
        every option that was read, and others are refused.
    """

    description: str
    load: Callable[..., Partition]

    @property
    def options(self) -> dict[str, Any]:
        """The importer's options and their defaults."""
        return keyword_defaults(self.load)


IMPORTERS: dict[str, Importer] = {
    "pfllib": Importer(
        "a folder of PFLlib's, its NPZ files exported as plain arrays", import_pfllib
    ),
    "flower": Importer("flwr-datasets: a JSON file of indices, or a folder", import_flower),
}


@checked
def import_partition(source: str, path: str | Path, dataset: Dataset, **options: Any) -> Partition:
    """Read another tool's saved split as a partition of a data set's pool.

    Args:
      source: a name in `IMPORTERS`.
      path: the file or folder that the tool wrote.
      dataset: the data set that was split.
      **options: keyword arguments of the importer.

    Raises:
      InputError: an unknown source, files of another form, or samples that the
        data set doesn't have.
    """
    source = find_name("source of saved splits", source, IMPORTERS)
    known = IMPORTERS[source].options
    for name in options:
        require_name(f"option of importer {source!r}", name, known)
    place = as_path("Path of a split", path)
    with reading(place):
        partition = IMPORTERS[source].load(place, dataset, **options)
    for name in options:
        if name not in partition.options:
            raise InputError(f"{name} has no effect on the split in {place}: leave it out.")
    partition.validate(len(dataset.labels), dataset.num_classes, dataset.labels)
    return partition


@checked
def detect_tool(place: Path) -> str | None:
    """Return the tool that wrote a file or folder, by the names in it, or None.

    "leaf" is a data set with clients, "flbench" a folder with a pickle; the others are names in
    `IMPORTERS`.
    """
    if place.is_file():
        return "flower" if place.suffix == ".json" else None
    if not place.is_dir():
        return None
    if is_pfllib(place):
        return "pfllib"
    if (place / FLBENCH).is_file():
        return "flbench"
    if leaf_files(place):
        return "leaf"
    numbered = any(re.search(r"\d$", entry.stem) for entry in place.iterdir())
    return "flower" if numbered else None


@checked
def read_partition(path: str | Path, dataset: Dataset) -> Partition:
    """Read a partition from a file of `Partition.save` or of another tool.

    Args:
      path: a file of `Partition.save`, a folder of PFLlib or FL-bench, or a JSON file or folder of
        flwr-datasets. `import_partition` has options for the latter.
      dataset: the data set that was split.

    Raises:
      InputError: no such file, or not of this data set.
    """
    place = as_path("Path of a partition", path)
    with reading(place):
        source = detect_tool(place)
    if source == "leaf":
        raise InputError(
            f"{place} is a folder of LEAF, with samples and their clients: use it as the data set, "
            f"leaf:{place}, with the rule by_column."
        )
    if source == "flbench":
        # Its indices count torchvision's training samples, then its test samples, as here.
        place /= EXPORTED
        if not place.exists():
            raise InputError(
                f"{place.with_name(FLBENCH)} is a pickle, which is never loaded here. If you trust "
                "it, export its indices with these lines of Python, and try again:",
                script=FLBENCH_EXPORT.format(folder=str(place.parent)),
            )
        check_export(place.with_name(FLBENCH), place)
    elif source is not None:
        return import_partition(source, place, dataset)
    if place.is_dir():
        raise InputError(
            f"{place} isn't a split of PFLlib (config.json and train/), FL-bench (partition.pkl) "
            "or flwr-datasets (folders that end in 0, 1, 2, ...): give such a folder, or an NPZ "
            "file with a partition."
        )
    partition = Partition.load(place)
    partition.validate(len(dataset.labels), dataset.num_classes, dataset.labels)
    return partition
