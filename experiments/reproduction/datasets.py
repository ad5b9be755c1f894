"""The papers' data sets: published facts, blank samples of their shapes, and checks of files."""

from functools import cache
from typing import NamedTuple

import numpy as np

import fedjax_pfl as pfl

from ..cli import data_flags
from ..cli.config import ExperimentConfig

BLANK, NOTE = "blank/", "on blank samples"
LARGEST = 200_000_000  # bytes of registered blank samples
MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)


class Kind(NamedTuple):
    """Published facts of a data set, enough to partition it and to build its model.

    Attributes:
      shape: of one sample.
      train, test: samples of each class.
      vocab_size: token ids of texts, or None.
    """

    shape: tuple[int, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    vocab_size: int | None = None


def _equal(total: int, classes: int) -> tuple[int, ...]:
    return tuple(len(range(c, total, classes)) for c in range(classes))


def _kind(shape, train: int, test: int, classes: int, vocab_size=None) -> Kind:
    return Kind(shape, _equal(train, classes), _equal(test, classes), vocab_size)


GREY, COLOUR = (28, 28, 1), (32, 32, 3)
KINDS = {
    "mnist": Kind(GREY, MNIST_TRAIN, MNIST_TEST),
    "fashion_mnist": _kind(GREY, 60_000, 10_000, 10),
    # The classes of "byclass" are unequal in the files; how many each holds isn't stated with it.
    "emnist/byclass": _kind(GREY, 697_932, 116_323, 62),
    "emnist/balanced": _kind(GREY, 112_800, 18_800, 47),
    "emnist/digits": _kind(GREY, 240_000, 40_000, 10),
    "cifar10": _kind(COLOUR, 50_000, 10_000, 10),
    "cifar100": _kind(COLOUR, 50_000, 10_000, 100),
    "cinic10": _kind(COLOUR, 90_000, 90_000, 10),
    "tiny_imagenet": _kind((64, 64, 3), 100_000, 10_000, 200),
    "ag_news": _kind((200,), 120_000, 7_600, 4, 32_000),
}
# Only the total of these is published, not the samples of each class.
UNEQUAL = ("emnist/byclass",)


@cache
def blank(
    name: str, most: int | None = None, most_test: int | None = None, title: str | None = None
) -> pfl.Dataset:
    """Make a data set of the published sizes, shape and classes whose samples are zero.

    Args:
      name: a key of `KINDS`.
      most, most_test: largest number of training and test samples of a class; None for all.
      title: the data set's name, by default the same.
    """
    kind = KINDS[name]
    rng, parts = np.random.default_rng(0), []
    for counts, limit in ((kind.train, most), (kind.test, most_test)):
        counts = np.minimum(counts, limit or max(counts))
        labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        zero = np.zeros((), np.uint8 if kind.vocab_size is None else np.int32)
        parts += [np.broadcast_to(zero, (len(labels), *kind.shape)), labels]
    options = {"num_classes": len(kind.train), "vocab_size": kind.vocab_size}
    return pfl.data.dataset_from_arrays(title or name, *parts, **options)


def register_blank(name: str) -> str | None:
    """Register the blank data set of `name`, for costs that don't depend on samples.

    Returns:
      its own name; None if facts are missing. Classes have as many samples as the published data
      set's, fewer where those are large.
    """
    kind = KINDS.get(name)
    if kind is None or kind.vocab_size is not None:
        return None
    title = BLANK + name

    def load(data_dir) -> pfl.Dataset:
        most = LARGEST // (int(np.prod(kind.shape)) * len(kind.train))
        return blank(name, most, most, title)

    if title not in pfl.data.DATASETS:
        pfl.data.register_dataset(title, f"{name} without its content")(load)
    return title


def check_data(args: ExperimentConfig, complete: bool) -> tuple[str | None, str | None]:
    """Return (an error of the data set of --dataset, a note on it), or None for each.

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
