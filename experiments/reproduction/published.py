"""Published facts of the papers' data sets: shapes, and samples of each class."""

from typing import NamedTuple

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
