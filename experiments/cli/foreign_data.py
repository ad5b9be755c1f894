"""A folder of another library's, given as a data set."""

from collections.abc import Collection
from pathlib import Path

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path
from fedjax_pfl.utils import aliases, name_matching

from . import splits
from .flagfiles import value_of

PREFIX = "pfllib:"
SAMPLES = ("pfllib", "leaf")  # tools whose folders hold samples


def adopt(values: absl.flags.FlagValues, others: Collection[str] = ("partition",)) -> None:
    """Writes --dataset=FOLDER of PFLlib's as pfllib:FOLDER, split as that folder splits it.

    The folder's split takes the place of a flagfile's rule. A folder of LEAF's becomes leaf:FOLDER,
    and a data set's name in another spelling, such as FashionMNIST, ours. Data sets that say whose
    their samples are get clients by column.

    Args:
      values: flags; changed in place.
      others: flags that, like --partition_file, say another split.

    Raises:
      InputError: the folder is FL-bench's, which has indices and no samples.
    """
    given = value_of(values, "dataset")
    if given not in pfl.data.DATASETS and ":" not in given and given.strip():
        place = as_path("--dataset", given)
        source = pfl.data.recognised(place)
        if source == "flbench":
            raise _of_flbench(place)
        if source in SAMPLES:
            values["dataset"].value = f"{source}:{given}"
    name, colon, place = value_of(values, "dataset").partition(":")
    name = name_matching.ours(name, pfl.data.DATASETS, aliases.DATASETS)
    given = values["dataset"].value = f"{name}{colon}{place}"
    if given.startswith(PREFIX):
        splits.give_way(values)
    dealt = values["partition_file"].value is not None or any(values[n].present for n in others)
    if given.startswith(PREFIX) and not dealt:
        values["partition_file"].value = given.removeprefix(PREFIX)
    source = pfl.data.DATASETS.get(given.partition(":")[0])
    if source is not None and source.natural and not dealt:
        values["partition"].value = "by_column"


def _of_flbench(place: Path) -> pfl.InputError:
    """FL-bench's folders are called like its data sets; torchvision unpacks some of them there."""
    name = place.resolve().name
    ours = name_matching.meant(name, pfl.data.DATASETS, aliases.DATASETS)
    raw = next((path for path in place.glob("*/raw") if path.is_dir()), None)
    where = "FOLDER" if raw is None else raw
    return pfl.InputError(
        f"{place} is a folder of FL-bench's, which holds a split: give the data set by name, "
        f"--dataset={ours[0] if ours else 'NAME'} --data_dir={where}, and "
        f"--partition_file={place}."
    )
