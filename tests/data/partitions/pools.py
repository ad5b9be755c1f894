"""Data sets to be parted, whose samples are their own pool index, and a small partition."""

import numpy as np

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.partition import Partition


def toy(train, test=0, classes=10, balanced=True, seed=0):
    """A data set of `train` + `test` samples whose samples are their own pool index."""
    rng = np.random.default_rng(seed)
    y = np.arange(train + test) % classes
    if not balanced:
        y = rng.choice(classes, train + test, p=rng.dirichlet(np.ones(classes)))
    y[:train] = rng.permutation(y[:train])
    x = np.arange(train + test, dtype=np.float32)[:, None]
    parts = (x[train:], y[train:]) if test else (None, None)
    return dataset_from_arrays("toy", x[:train], y[:train], *parts, num_classes=classes)


OFFICIAL = toy(2000, 400)
POOLED = toy(2000)
# Sizes of CIFAR-10's, so that the papers' numbers are met exactly.
CIFAR10 = toy(50000, 10000)


def counts(partition, dataset, split="train"):
    return partition.class_counts(dataset.labels, dataset.num_classes, split)


def all_counts(partition, dataset):
    return counts(partition, dataset) + counts(partition, dataset, "test")


def example(**fields):
    """A partition of eight samples among three clients."""
    return Partition.from_lists([[0, 1], [5], [3, 4, 6]], [[2], [], [7]], **fields)
