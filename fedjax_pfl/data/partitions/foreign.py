"""Tells which tool saved a split, and reads it."""

import re
from pathlib import Path

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.files import as_path, reading
from fedjax_pfl.data.partitions.flbench import LISTS, is_flbench
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.pfllib_files import is_pfllib
from fedjax_pfl.data.sources.leaf import is_leaf
from fedjax_pfl.utils.errors import InputError


def recognised(place: Path) -> str | None:
    """The tool that wrote a file or folder, from the names in it; None for no other tool's.

    "leaf" is a data set with clients, the others are importers of splits.
    """
    if place.is_file():
        return "flower" if place.suffix == ".json" else None
    if not place.is_dir():
        return None
    if is_pfllib(place):
        return "pfllib"
    if is_flbench(place):
        return "flbench"
    if is_leaf(place):
        return "leaf"
    numbered = any(re.search(r"\d$", entry.stem) for entry in place.iterdir())
    return "flower" if numbered else None


def read_partition(path: str | Path, dataset: Dataset) -> Partition:
    """A partition of a data set's pool from a file of ours, or from what another tool saved.

    Args:
      path: what `Partition.save` wrote, a folder of PFLlib's or FL-bench's, or a JSON file or
        folder of flwr-datasets. `import_partition` has options for these.
      dataset: the data set that was split.

    Raises:
      InputError: no such file, or not of this data set.
    """
    place = as_path("Path of a partition", path)
    with reading(place):
        if place.name == LISTS and is_flbench(place.parent):
            place = place.parent
        source = recognised(place)
    if source == "leaf":
        raise InputError(
            f"{place} is a folder of LEAF's, which holds samples and their clients: give it as the "
            f"data set, leaf:{place}, with the rule by_column."
        )
    if source is not None:
        return import_partition(source, place, dataset)
    if place.is_dir():
        raise InputError(
            f"{place} is no split of PFLlib (config.json and train/), FL-bench (partition.pkl) or "
            "flwr-datasets (folders that end in 0, 1, 2, ...): give such a folder, or an NPZ file "
            "with a partition."
        )
    partition = Partition.load(place)
    partition.validate(len(dataset.labels), dataset.num_classes, dataset.labels)
    return partition
