"""Poisoned samples belong to the attackers, and to nobody else."""

import numpy as np
import pytest

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.poisoning import Backdoor, LabelFlip, poison
from fedjax_pfl.utils.errors import InputError


def clients():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, size=(24, 6, 6, 1)).astype(np.uint8)
    dataset = dataset_from_arrays("toy", x[:20], np.arange(20) % 4, x[20:], np.arange(4))
    shared = [[0, 1, 2, 3], [2, 3, 4, 5, 6], [7, 8]]  # clients 0 and 1 share two samples
    tests = [[20], [21], [22, 23]]
    return dataset, Partition.from_lists(shared, tests, allow_overlap=True)


def samples(dataset, partition, client, split="train"):
    x, y = dataset.pool()
    held = partition.client(split, client)
    return x[held], y[held]


@pytest.mark.parametrize(
    "change", [LabelFlip(4), LabelFlip(4, "random"), Backdoor(size=2), Backdoor(distributed=True)]
)
def test_only_attackers_train_on_other_samples(change):
    before, after = clients(), poison(*clients(), [1], change)
    for client in (0, 1, 2):
        for split in ("train", "test"):
            old, new = samples(*before, client, split), samples(*after, client, split)
            same = all(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
            assert same == (client != 1 or split == "test")
            assert len(old[1]) == len(new[1])
    after[1].validate(len(after[0].labels), 4, after[0].labels)


def test_mirrored_labels():
    dataset, partition = clients()
    _, y = samples(dataset, partition, 1)
    _, flipped = samples(*poison(dataset, partition, [1], LabelFlip(4)), 1)
    np.testing.assert_array_equal(flipped, 3 - y)


def test_a_backdoor_marks_its_share():
    dataset, partition = clients()
    change = Backdoor(target=3, share=0.5, size=2, corner="top_left")
    x, y = samples(*poison(dataset, partition, [1], change), 1)
    marked = (x[:, :2, :2, 0] == dataset.train_x.max()).all((1, 2))
    assert marked.sum() == 3 and (y[marked] == 3).all()
    original, _ = samples(dataset, partition, 1)
    np.testing.assert_array_equal(x[:, 2:], original[:, 2:])


def test_a_share_is_not_rounded_up_by_its_last_digit():
    x, y = np.zeros((100, 4, 4, 1), np.float32), np.ones(100, int)
    assert (Backdoor(share=0.07)(x, y, 0, 1.0)[1] == 0).sum() == 7


def test_quarters_make_up_the_trigger():
    black = np.zeros((1, 8, 8, 1), np.uint8)
    backdoor = Backdoor(distributed=True)
    parts = [backdoor.triggered(black, 9, quarter) for quarter in range(4)]
    assert [int((part > 0).sum()) for part in parts] == [4] * 4
    np.testing.assert_array_equal(np.maximum.reduce(parts), backdoor.triggered(black, 9))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: poison(*clients(), [3], LabelFlip(4)), "attacker must be a whole number in 0..2"),
        (lambda: LabelFlip(4, "swap"), "label flip 'swap'"),
        (lambda: Backdoor(share=0.0), "share must be"),
        (lambda: poison(*clients(), [0], Backdoor(size=7)), "at least 7x7 pixels"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(InputError, match=words):
        make()
