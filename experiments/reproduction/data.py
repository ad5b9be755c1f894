"""Checks that a cell's data set is there and is the paper's."""

import numpy as np

import fedjax_pfl as pfl

from ..cli import data_flags
from ..cli.config import ExperimentConfig
from .published import KINDS

# Only the total of these is known, see `published`.
UNEQUAL = ("emnist/byclass",)


def trouble(args: ExperimentConfig, complete: bool) -> tuple[str | None, str | None]:
    """(why the data set of --dataset can't be used, a note on it); None each if all is well.

    Folders can hold the files of another data set under the same names, or only a part of it.

    Args:
      args: flags of `experiments.run`.
      complete: whether all of the data set is needed.
    """
    try:
        dataset = data_flags.load_dataset(args)
    except pfl.InputError as error:
        return str(error), None
    kind = KINDS.get(args.dataset)
    if kind is None:
        return None, None
    published = sum(kind.train) + sum(kind.test)
    count = len(dataset.labels)
    if count < published:
        text = f"{count:,} of the {published:,} samples of {args.dataset}"
        problem = f"Data set {args.dataset!r} is incomplete: {text} are there."
        return (problem, None) if complete else (None, text)
    counts = np.bincount(dataset.labels[: dataset.num_train], minlength=len(kind.train))
    if args.dataset not in UNEQUAL and counts.tolist() != list(kind.train):
        return (
            f"The files found for data set {args.dataset!r} are another data set's: their classes "
            f"have {counts.min():,} to {counts.max():,} training samples, those of the published "
            f"one {min(kind.train):,} to {max(kind.train):,}. Give the folder above, with a folder "
            "for each data set, as --data_dir.",
            None,
        )
    return None, None
