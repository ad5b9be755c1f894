"""Splits that PFLlib's `generate_*.py` wrote."""

from pathlib import Path

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partitions.matching import Matcher, check_class_counts, pixels
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import is_number
from fedjax_pfl.data.pfllib_files import CONFIG, read_clients, read_config
from fedjax_pfl.utils.errors import InputError, require

_COUNTS = "Size of samples for labels in clients"


def import_pfllib(
    folder: Path, dataset: Dataset, *, mean: float = 0.5, std: float = 0.5
) -> Partition:
    """A split that PFLlib's `generate_*.py` wrote: config.json, train/ID.npz, test/ID.npz.

    Those NPZ files contain pickled Python objects, which are never loaded. If you trust them, the
    three lines of `pfllib_files.PFLLIB_EXPORT` write `ID.plain.npz` with the plain arrays x and y
    beside each, which are read here. PFLlib saves normalized copies of the samples, so they are
    converted back to pixels and looked up in the pool. Equal samples of the pool are used in
    order; `options["ambiguous_samples"]` counts such choices.

    Args:
      folder: with config.json, train and test.
      dataset: the data set that was split, its training and test samples.
      mean: mean of the script's `Normalize`: pixel = 255 * (x * std + mean).
      std: its standard deviation.

    Raises:
      InputError: files missing, not exported or not of this data set, or a data set of texts.
    """
    if dataset.vocab_size is not None:
        raise InputError(
            "PFLlib's splits of texts can't be read: it saves token ids of its own vocabulary, "
            f"which don't identify the texts of data set {dataset.name!r}. Its rules are available "
            "as partitions 'pat' and 'dirichlet'."
        )
    config = read_config(folder)
    for name, value in (("mean", mean), ("std", std)):
        require(is_number(value) and np.isfinite(value), name, value, "a finite number")
    matcher = Matcher(dataset)
    lists, scaled = {}, False
    for split in ("train", "test"):
        lists[split] = []
        for what, x, y in read_clients(folder, split, config["num_clients"]):
            samples = pixels(x, dataset, what, mean, std)
            scaled |= x.dtype != samples.dtype
            lists[split].append(matcher.match(samples, y, what))
    if (rows := config.get(_COUNTS)) is not None:
        n = len(lists["train"])
        if not (isinstance(rows, list) and len(rows) == n and all(map(_are_pairs, rows))):
            raise InputError(
                f"{_COUNTS!r} in {CONFIG} must be a list of {n} lists, one for each client, of "
                "pairs [class, samples]: is the file damaged? Without that entry nothing is "
                "compared."
            )
        check_class_counts(list(map(dict, rows)), [*lists.values()], dataset, folder / CONFIG)
    options = {"path": str(folder), "ambiguous_samples": matcher.ambiguous}
    if scaled:
        options |= {"mean": mean, "std": std}
    return Partition.from_lists(**lists, rule="pfllib", options=options)


def _are_pairs(row) -> bool:
    return isinstance(row, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)
        for pair in row
    )
