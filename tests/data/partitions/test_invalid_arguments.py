"""Invalid arguments of partitions and rules: indices, unread options, numbers out of range."""

import json

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data import limits
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.utils.errors import InputError

SAMPLES = np.arange(800, dtype=np.uint8).reshape(400, 2)
POOL = dataset_from_arrays("toy", SAMPLES, np.arange(400) % 10)
OFFICIAL = dataset_from_arrays("toy", SAMPLES, POOL.train_y, SAMPLES, POOL.train_y)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([1.5], "must be a flat list of whole numbers, got 'float64"),
        ([1.0, 2.0], "got 'float64"),
        ([0, True], "got 'int64"),
        (np.array([True, False]), "got 'bool"),
        (["3"], "got '<U1"),
        ([float("nan")], "got 'float64"),
        ([None], "got 'object"),
        ([[0, 1]], r"got 'int64 \(1, 2\)"),
        ([[0], [1, 2]], "got 'object"),
        (3, "got 'int64"),
        ([10**30], "got 'object"),
        ([2**31], r"must be in 0\.\.2\*\*31 - 1, got '2147483648"),
        ([2**63], r"must be in 0\.\.2\*\*31 - 1, got '9223372036854775808"),
        ([-1], r"must be in 0\.\.2\*\*31 - 1, got '-1"),
        ([-(2**40)], r"must be in 0\.\.2\*\*31 - 1, got '-1099511627776"),
    ],
)
def test_lists_of_anything_but_whole_numbers(indices, message):
    with pytest.raises(InputError, match="Sample indices of client 1 .*" + message):
        Partition.from_lists([[0], indices], [[], []])


def test_empty_lists_of_any_type_are_empty():
    p = Partition.from_lists([[], np.zeros(0), (), [3]], [[]] * 4)
    assert p.sizes().tolist() == [0, 0, 0, 1] and p.train.idx.dtype == np.int32


@pytest.mark.parametrize(
    ("data", "rule", "options", "needed"),
    [
        (POOL, "grouped", {"dominant_classes": 3}, "dominant='sampled'"),
        (POOL, "pat", {"balance": True, "min_size": 1}, "balance=False"),
        (POOL, "waffle", {"alice": 0}, "a starred distribution"),
        (POOL, "waffle", {"distribution": "C", "concept_shift": "permutation"}, "a starred distr"),
        (OFFICIAL, "iid", {"test_fraction": 0.2}, "test_split 'pooled' or 'train'"),
        (OFFICIAL, "iid", {"test_fraction": 0.2, "test_split": "official"}, "test_split 'pooled'"),
    ],
)
def test_options_that_the_mode_does_not_read(data, rule, options, needed):
    options = dict(options)
    name = next(iter(set(options) - {"balance", "distribution", "test_split"}))
    with pytest.raises(InputError, match=f"^{name} is read with {needed}.* only: leave it out, go"):
        make_partition(rule, data, 10, 0, **options)
    options.pop(name)
    assert make_partition(rule, data, 10, 0, **options).num_clients == 10


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("shards", {"shards_per_client": 2**31 - 1}, "10 clients of 2147483647 shards need 21474"),
        ("pat", {"min_size": 10**9}, "min_size must be at most 40 for 10 clients"),
        ("pfedla_noniid1", {"samples_per_client": 10**9}, "but there are enough for 40"),
        ("dirichlet", {"max_retries": 10**30}, "max_retries must be a whole number below 2.31"),
        ("dirichlet", {"alpha": [0.1] * 1000}, "alpha must be a number, text, True, .*, got 'li"),
        ("grouped", {"dominant_share": 10**400}, "dominant_share must be a number from 0 to 1"),
    ],
)
def test_numbers_that_nobody_has_samples_for(rule, options, message):
    with pytest.raises(InputError, match=message):
        make_partition(rule, POOL, 10, 0, **options)


def test_tables_of_clients_and_classes_must_fit_into_memory(monkeypatch):
    monkeypatch.setattr(limits, "free", lambda: 2**26)
    many = dataset_from_arrays("many", SAMPLES, np.zeros(400, int), num_classes=2**20)
    for make in (
        lambda: make_partition("iid", many, 100, 0),
        lambda: Partition.from_lists([[0]] * 100, [[]] * 100).validate(400, 2**20, many.labels),
    ):
        with pytest.raises(InputError, match=r"100 clients and 1,048,576 classes would take 0.84"):
            make()


def test_a_federation_without_any_training_sample():
    empty = Partition.from_lists([[], []], [[0], [1]])
    with pytest.raises(InputError, match=r"No client of the partition \(rule 'custom'\) holds a t"):
        pfl.federate(POOL, empty, "softmax")


def test_importers_refuse_options_they_do_not_read(tmp_path):
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"0": [0, 1], "1": [2]}))
    with pytest.raises(InputError, match=r"^index_column has no effect on the split in .*split\.j"):
        import_partition("flower", path, POOL, index_column="index")
    with pytest.raises(InputError, match=r"Unknown option of importer 'flower' 'sed'\. Did you"):
        import_partition("flower", path, POOL, sed=1)
    path.write_text(json.dumps({"train": {"0": [0]}, "test": {"0": [1]}}))
    with pytest.raises(InputError, match=r"^seed has no effect"):
        import_partition("flower", path, OFFICIAL, seed=1)
    path.write_text('{"0": [0, 1], "0": [2]}')
    with pytest.raises(InputError, match="can't be read as JSON: '0' is there twice"):
        import_partition("flower", path, POOL)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda p: p.validate(400, 10, POOL.train_y / 2), "whole numbers in 0..9, got 'float64"),
        (lambda p: p.validate(0, 10, []), "Number of samples must be at least"),
        (lambda p: p.validate(400, "a", POOL.train_y), "num_classes must be a whole number of at"),
    ],
)
def test_arguments_of_another_type(use, message):
    with pytest.raises(InputError, match=message):
        use(Partition.from_lists([[0, 1], [2]], [[3], [4]]))
