"""The rules of single papers: class sets, sizes, groups, what can't be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.utils.errors import InputError
from tests.data.partitions.pools import CIFAR10, POOLED, all_counts, counts, toy


@settings(max_examples=20, deadline=None)
@given(
    clients=st.integers(1, 40),
    each=st.integers(1, 6),
    seed=st.integers(0, 99),
    test=st.sampled_from([0, 500]),
)
def test_shards(clients, each, seed, test):
    dataset = toy(2000, test, balanced=False, seed=3)
    p = make_partition("shards", dataset, clients, seed, shards_per_client=each)
    shard = 2000 / (clients * each)
    size = p.sizes() + (0 if test else p.sizes("test"))
    assert size.sum() == 2000
    assert np.all(np.abs(size - each * shard) <= each)
    if test:
        assert p.sizes("test").sum() == test


def test_shards_of_the_paper():
    p = make_partition("shards", CIFAR10, 20, 2)
    assert p.sizes().tolist() == [2500] * 20
    assert p.sizes("test").tolist() == [500] * 20
    held, tested = counts(p, CIFAR10), counts(p, CIFAR10, "test")
    assert set(np.unique(held)) <= {0, 1250, 2500}
    np.testing.assert_array_equal(held, 5 * tested)  # the same assignment
    assert set(np.sum(held > 0, axis=1)) <= {1, 2}
    with pytest.raises(InputError, match="500 clients of 5 shards need 2500 samples or more, but"):
        make_partition("shards", POOLED, 500, 0, shards_per_client=5)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("dirichlet_per_client", {"alpha": 1e-4}),
        ("exdir", {"alpha": 1e-4, "min_size": 2}),
        ("pat", {}),
        ("pfedla_noniid1", {"classes_per_client": 2}),
        ("pfedla_noniid2", {"dominant_classes": 1, "allow_overlap": True}),
        ("shards", {"shards_per_client": 1}),
        ("waffle", {"distribution": "A*", "test_fraction": 0}),
        ("grouped", {}),
        ("grouped", {"dominant": "sampled", "dominant_classes": 3, "test_fraction": 0}),
        ("pathological", {"classes_per_client": 1}),
        ("pathological", {"test_split": "pooled"}),
        ("iid", {}),
        ("pfedla_fig5", {"classes_per_client": 3, "allow_overlap": True}),
        ("pfedla_fig6", {"classes_per_client": 3}),
    ],
)
def test_extreme_settings_terminate(rule, options):
    p = make_partition(rule, toy(900), 300, 0, **options)  # three samples each
    assert (p.sizes() + p.sizes("test")).min() >= 1


@pytest.mark.parametrize(
    ("classes", "clients", "each", "groups"), [(10, 20, 2, 5), (100, 20, 10, 10), (4, 20, 2, 2)]
)
def test_pat_hidden_groups(classes, clients, each, groups):
    dataset = toy(60000, classes=classes)
    p = make_partition("pat", dataset, clients, 0, classes_per_client=each)
    held = all_counts(p, dataset)
    assert held.sum() == 60000
    assert np.all((held > 0).sum(axis=1) == each)
    in_groups = [k // (clients // groups) for k in range(clients)]
    assert p.options["client_groups"] == in_groups
    first = np.flatnonzero(held[0])
    assert first.tolist() == list(range(each))
    # All owners of a class but the last hold between a tenth of the mean and the mean.
    mean = 60000 / classes / (clients // groups)
    for c in range(classes):
        *sizes, last = held[held[:, c] > 0, c]
        assert all(mean // 10 <= size < mean for size in sizes)
        assert last >= mean - 1
    assert len(np.unique(held.sum(axis=1))) > 2
    np.testing.assert_allclose(p.sizes("test") / held.sum(axis=1), 0.25, atol=0.01)


def test_pat_balanced_and_left_over_classes():
    p = make_partition("pat", POOLED, 20, 0, balance=True)
    assert all_counts(p, POOLED).sum(axis=1).tolist() == [100] * 20
    p = make_partition("pat", POOLED, 7, 0)  # owners are rounded up: 2 for a class
    assert np.flatnonzero(all_counts(p, POOLED).sum(axis=0)).tolist() == list(range(8))
    with pytest.raises(InputError, match="1900 clients of 9 classes need 1710 samples of class 0"):
        make_partition("pat", POOLED, 1900, 0, classes_per_client=9)


@settings(max_examples=20, deadline=None)
@given(
    clients=st.integers(2, 40), alpha=st.sampled_from([1e-4, 0.1, 100.0]), each=st.integers(1, 5)
)
def test_exdir_keeps_class_sets_and_the_minimum(clients, alpha, each):
    p = make_partition(
        "exdir", POOLED, clients, 0, classes_per_client=each, alpha=alpha, max_retries=3
    )
    held = all_counts(p, POOLED)
    for row, classes in zip(held, p.options["class_sets"], strict=True):
        assert set(np.flatnonzero(row)) <= set(classes)
        assert len(classes) == each
        assert row.sum() >= 10


def test_exdir_refuses():
    with pytest.raises(InputError, match=r"clients own class 0 and need 5 samples of it for min"):
        make_partition("exdir", POOLED, 300, 0)


@settings(max_examples=20, deadline=None)
@given(
    clients=st.integers(1, 40),
    each=st.integers(1, 10),
    iid=st.booleans(),
    balanced=st.booleans(),
    seed=st.integers(0, 99),
)
def test_spfl_class_sets_and_parts(clients, each, iid, balanced, seed):
    dataset = toy(4000, 500, balanced=balanced, seed=8)
    options = {"classes_per_client": each, "iid": iid}
    held_in_all = np.bincount(dataset.train_y, minlength=10)
    try:
        p = make_partition("spfl", dataset, clients, seed, **options)
    except InputError as error:
        assert "can't be cut into" in str(error) or "no test sample" in str(error)
        assert held_in_all.min() < 3 * clients
        return
    held = all_counts(p, dataset)
    assert np.all((held > 0).sum(axis=1) == each)
    if iid:
        assert len({tuple(row > 0) for row in held}) == 1
    np.testing.assert_array_equal(held, (held > 0) * (held_in_all // clients))


@pytest.mark.parametrize(
    ("rule", "clients", "options", "message"),
    [
        ("waffle", 10, {"distribution": "D"}, "Unknown distribution 'D'"),
        ("waffle", 10, {"rotation": "up"}, "Unknown rotation 'up'"),
        ("waffle", 10, {"sample_shares": "D"}, "Unknown sample_shares 'D'"),
        ("waffle", 10, {"concept_shift": "swap"}, "Unknown concept_shift 'swap'"),
        ("waffle", 10, {"alice": 10}, "alice must be a whole number in 0..9, got 10"),
        ("waffle", 9, {"sample_shares": "B"}, "num_clients must be 10 for sample_shares='B'"),
        ("spfl", 201, {}, r"Class \d of 200 samples can't be cut into 201 parts"),
        ("spfl", 10, {"iid": 1}, "iid must be True or False, got 1"),
        ("spfl", 10, {"classes_per_client": 11}, "a whole number in 1..10, got 11"),
        ("pat", 10, {"balance": "no"}, "balance must be True or False, got 'no'"),
        ("pfedla_noniid1", 10, {"samples_per_client": 700}, "10 clients need 700 samples each, "),
        ("pfedla_noniid1", 10, {"samples_per_client": 3}, "must be at least 4, got 3"),
        (
            "pfedla_noniid1",
            1000,
            {},
            "1000 clients need 4 samples each, but there are enough for 2",
        ),
        ("pfedla_noniid1", 10, {"allow_overlap": 1}, "allow_overlap must be True or False"),
        (
            "pfedla_noniid2",
            10,
            {"dominant_share": 1},
            "dominant_share must be a number above 0 and below 1, got 1",
        ),
        ("pfedla_noniid2", 10, {"dominant_classes": 10}, "a whole number in 1..9, got 10"),
        ("dirichlet_per_client", 10, {"alpha": 0}, "alpha must be a finite number above 0, got 0"),
        ("shards", 10, {"shards_per_client": 0}, "shards_per_client must be a whole number of"),
        ("exdir", 10, {"alpha": float("inf")}, "alpha must be a finite number above 0, got inf"),
    ],
)
def test_refusals(rule, clients, options, message):
    with pytest.raises(InputError, match=message):
        make_partition(rule, POOLED, clients, 0, **options)


def test_spfl_ends_with_a_sample_of_each_class_a_client():
    # 300 samples of 10 classes in 30 parts each: one sample a part, all clients want 9 classes.
    p = make_partition("spfl", toy(300), 30, 0, classes_per_client=9, test_fraction=0.2)
    assert (p.sizes() + p.sizes("test")).tolist() == [9] * 30
