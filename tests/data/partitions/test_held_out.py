"""Which samples are held out for testing and validation: to the nearest sample, some for each."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.partition import Partition, held_out
from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.utils.errors import InputError
from tests.data.partitions.pools import OFFICIAL, POOLED, counts, example, toy


def test_strata_are_held_out_to_the_nearest_sample():
    # Ten classes a client, 179 or 180 samples: a quarter of each class alone would be 4 too many.
    p = make_partition("waffle", toy(1797), 10, 0)
    train, test = counts(p, toy(1797)), counts(p, toy(1797), "test")
    np.testing.assert_allclose(test, 0.25 * (train + test), atol=1)
    assert p.sizes("test").sum() == 450  # of 1,797: 0.2504
    # Equal claims: another class gives the odd sample in every client.
    p = make_partition("pathological", toy(2200), 10, 0, classes_per_client=10, test_split="pooled")
    odd = counts(p, toy(2200), "test") - 5
    assert odd.sum(axis=1).tolist() == [5] * 10
    assert odd.min() == 0 and odd.max() == 1
    assert odd.sum(axis=0).tolist() == [5] * 10


def test_a_class_keeps_a_sample_to_train_on_where_it_can():
    y = np.repeat([0, 1, 2, 3, 4], [1, 1, 1, 1, 16])
    dataset = dataset_from_arrays("odd", np.zeros((20, 1), np.float32), y)
    p = make_partition("waffle", dataset, 1, 0, test_fraction=0.5)
    assert p.sizes("test").tolist() == [10]
    assert counts(p, dataset).min() == 1
    p = make_partition("waffle", dataset, 1, 0, test_fraction=0.9)
    assert p.sizes("test").tolist() == [18]


def test_clients_of_a_few_samples_have_test_samples():
    for rule, options in (
        ("pathological", {"classes_per_client": 3, "test_split": "pooled"}),
        ("pfedla_noniid1", {"classes_per_client": 3, "samples_per_client": 3}),
        ("iid", {"test_split": "pooled"}),
    ):
        p = make_partition(rule, toy(900), 300, 0, test_fraction=0.25, **options)
        assert p.sizes("train").tolist() == [2] * 300
        assert p.sizes("test").tolist() == [1] * 300


@pytest.mark.parametrize(
    ("clients", "fraction", "message"),
    [
        (2000, 0.25, "none holds a second sample. Take fewer clients"),
        (1000, 0.2, "the largest holds 2 samples. .* or a test_fraction of 0.25 or more"),
        (600, 0.1, "the largest holds 3 samples. .* or a test_fraction of 0.167 or more"),
    ],
)
def test_no_test_samples_at_all_is_refused_with_a_remedy(clients, fraction, message):
    with pytest.raises(InputError, match=f"leaves no test sample to any client: {message}"):
        make_partition("iid", POOLED, clients, 0, test_fraction=fraction)
    if "or more" in message:
        remedy = float(message.split()[-3])
        p = make_partition("iid", POOLED, clients, 0, test_fraction=remedy)
        assert p.sizes("test").tolist() == [1] * clients


def test_no_test_samples_where_that_is_asked_for():
    p = make_partition("iid", POOLED, 2000, 0, test_fraction=0)
    assert sorted(p.train.idx) == list(range(2000))


def test_train_split_is_refused_never_and_leaves_test_samples_alone():
    p = make_partition("iid", OFFICIAL, 10, 0, test_split="train", test_fraction=0.1)
    assert p.options["test_split"] == "train"
    assert p.sizes().tolist() == [180] * 10
    assert p.test.idx.max() < 2000


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    fraction=st.floats(0, 0.999),
    seed=st.integers(0, 2**40),
)
def test_validation_split(sizes, fraction, seed):
    ends = np.cumsum([0, *sizes])
    train = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    p = Partition.from_lists(train, [[] for _ in sizes], rule="iid")
    out = p.split_validation(fraction, seed)
    for i, size in enumerate(sizes):
        trained, moved = out.client("train", i), out.client("validation", i)
        assert sorted([*trained, *moved]) == list(train[i])
        assert abs(len(moved) - fraction * size) <= 0.5 + 1e-9 or len(trained) == 1
        assert len(trained) >= min(size, 1)
        assert list(trained) == sorted(trained)
    assert out.hash() == p.split_validation(fraction, seed).hash()
    assert out.options == {"validation_fraction": fraction, "validation_seed": seed}
    assert (out.rule, p.sizes("validation").sum()) == ("iid", 0)


def test_validation_split_of_a_client_is_its_own():
    p = Partition.from_lists([range(20), range(20, 60)], [[], []])
    q = Partition.from_lists([range(20), range(30, 35)], [[], []])
    one, other = p.split_validation(0.5, 3), q.split_validation(0.5, 3)
    assert one.client("train", 0).tolist() == other.client("train", 0).tolist()
    assert one.hash() != p.split_validation(0.5, 4).hash()


def test_validation_split_refuses():
    with pytest.raises(InputError, match=r"at least 0 and below 1, got 1\.0"):
        example().split_validation(1.0, 0)
    with pytest.raises(
        InputError, match="Validation seed must be a whole number of at least 0, got -1"
    ):
        example().split_validation(0.1, -1)
    with pytest.raises(InputError, match="split it only once"):
        example().split_validation(0.5, 0).split_validation(0.5, 0)


@pytest.mark.parametrize(
    ("fraction", "size", "expected"),
    [
        (0.25, 100, 25),
        (0.25, 10, 3),
        (0.2, 10, 2),
        (0.9, 1, 0),
        (0.99, 5, 4),
        (0, 9, 0),
        (0.5, 0, 0),
    ],
)
def test_held_out(fraction, size, expected):
    assert held_out(fraction, size) == expected
