"""The partition container: counts, hash, files and checks."""

from dataclasses import replace

import numpy as np
import pytest

from fedjax_pfl.data.partitions.partition import Partition, Ragged
from fedjax_pfl.utils.errors import InputError
from tests.data.partitions.pools import example

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 0], np.int32)


def test_sizes_and_clients():
    p = example()
    assert p.num_clients == 3
    assert p.sizes().tolist() == [2, 1, 3]
    assert p.sizes("test").tolist() == [1, 0, 1]
    assert p.sizes("validation").tolist() == [0, 0, 0]
    assert p.client("train", 2).tolist() == [3, 4, 6]
    assert p.client("test", 1).tolist() == []
    assert p.train.idx.dtype == np.int32
    assert p.train.offsets.tolist() == [0, 2, 3, 6]
    assert [one.tolist() for one in p.test.lists()] == [[2], [], [7]]
    with pytest.raises(InputError, match=r"Client must be a whole number in 0\.\.2, got 3"):
        p.client("train", 3)
    with pytest.raises(InputError, match="Unknown split 'val'"):
        p.sizes("val")


def test_class_counts_see_the_label_map():
    assert example().class_counts(LABELS, 3).tolist() == [[1, 1, 0], [0, 0, 1], [2, 1, 0]]
    assert example().class_counts(LABELS, 3, "test").tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    p = example(label_map=np.array([[0, 1, 2], [2, 1, 0], [1, 2, 0]]))
    assert p.class_counts(LABELS, 3).tolist() == [[1, 1, 0], [1, 0, 0], [0, 2, 1]]


def test_hash_is_of_the_content_alone():
    p = example()
    assert p.hash() == example(rule="other", options={"a": 1}, allow_overlap=True).hash()
    wide = Partition(
        *(Ragged(r.idx.astype("i8"), r.offsets.astype("i4")) for r in (p.train, p.test))
    )
    assert p.hash() == wide.hash()
    others = [
        Partition.from_lists([[0, 1, 5], [], [3, 4, 6]], [[2], [], [7]]),
        Partition.from_lists([[1, 0], [5], [3, 4, 6]], [[2], [], [7]]),
        Partition.from_lists([[0, 1], [5], [3, 4, 6]], [[2], [7], []]),
        Partition.from_lists([[2], [], [7]], [[0, 1], [5], [3, 4, 6]]),
        example(label_map=np.zeros((3, 3), int)),
        Partition.from_lists([[0, 1], [5], [3, 4]], [[2], [], [7]], [[], [], [6]]),
    ]
    assert len({p.hash(), *(other.hash() for other in others)}) == 7
    # A golden value: a hash stored with a result must stay comparable.
    assert p.hash() == "a63ada37d45adac0fa8f05c2400f32527264745cbb58fcfe40b09c6d98870398"


@pytest.mark.parametrize("full", [False, True])
def test_file_round_trip(tmp_path, full):
    p = example()
    if full:
        p = Partition.from_lists(
            [[0], [5], [3, 4]], [[2], [], [7]], [[1], [], [6]], label_map=np.eye(3, dtype=int)
        )
    path = tmp_path / "new" / "split.npz"
    p.save(path)
    with np.load(path) as file:
        keys = {"train_idx", "train_offsets", "test_idx", "test_offsets"}
        assert set(file.files) == keys | (
            {"val_idx", "val_offsets", "label_map"} if full else set()
        )
        assert file["train_idx"].dtype == np.int32
        assert file["train_offsets"].tolist() == p.train.offsets.tolist()
    loaded = Partition.load(path)
    assert loaded.hash() == p.hash()
    assert (loaded.rule, loaded.allow_overlap) == ("file", True)
    assert loaded.options == {"path": str(path)}
    np.testing.assert_array_equal(loaded.validation.idx, p.validation.idx)
    loaded.validate(8, 3, LABELS)


def test_files_are_never_overwritten(tmp_path):
    path = tmp_path / "split.npz"
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"split\.npz exists and a partition is never overwritten"):
        example().save(path)
    assert path.read_bytes() == b"mine"


FILE = {
    "train_idx": np.array([0, 1, 2]),
    "train_offsets": np.array([0, 2, 3]),
    "test_idx": np.array([3]),
    "test_offsets": np.array([0, 0, 1]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_offsets": np.array([0, 3, 2, 3])}, "must be non-decreasing, got .'3, then 2'"),
        ({"train_offsets": np.array([0, 2, 4])}, r"must be from 0 to 3, .*, got \(0, 4\)"),
        ({"train_offsets": np.array([1, 2, 3])}, r"must be from 0 to 3, .*, got \(1, 3\)"),
        ({"train_offsets": np.array([0])}, "must be at least 2 numbers: 1 client or more, got 1"),
        ({"test_offsets": np.array([0, 1])}, "must be 3 numbers, as for training, got 2"),
        ({"train_idx": np.array([[0, 1, 2]])}, "Axes of train_idx in .* must be 1, got 2"),
        ({"train_offsets": np.array(3)}, "Axes of train_offsets in .* must be 1, got 0"),
        ({"test_idx": np.array(3)}, "Axes of test_idx in .* must be 1, got 0"),
        ({"label_map": np.array(3)}, "Axes of label_map in .* must be 2, got 0"),
        ({"client_names": np.array("a")}, r"client_names in .* must be text \[N\], got '<U1 \(\)'"),
        ({"train_idx": np.array([0.0, 1, 2])}, "must be integers, got 'float64'"),
        (
            {"train_idx": np.array([0, 1, 2**31])},
            r"must be in 0\.\.2\*\*31 - 1, got '0\.\.2147483648'",
        ),
        ({"train_idx": np.array([0, 1, -2])}, r"got '-2\.\.1'"),
        ({"train_idx": np.array([0, 1, None])}, "can't be read as an NPZ file of plain arrays"),
        ({"val_idx": np.array([4])}, "both of val_idx and val_offsets or neither"),
    ],
)
def test_bad_files(tmp_path, change, message):
    path = tmp_path / "bad.npz"
    np.savez(path, **(FILE | change))
    with pytest.raises(InputError, match=message):
        Partition.load(path)


def test_missing_keys_and_files(tmp_path):
    with pytest.raises(InputError, match="No file"):
        Partition.load(tmp_path / "none.npz")
    np.savez(tmp_path / "few.npz", train_idx=np.zeros(1, int))
    with pytest.raises(
        InputError, match="lacks train_offsets, test_idx, test_offsets; arrays found"
    ):
        Partition.load(tmp_path / "few.npz")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([[0, 8]], [[]], r"Sample indices \(train\) must be in 0\.\.7, got 8"),
        ([[0]], [[-1]], r"Sample indices of client 0 must be in 0\.\.2\*\*31 - 1, got '-1"),
        ([[3], [1, 2, 1]], [[], []], "Sample 1 is listed twice in train of client 1"),
        ([[3], [1, 3]], [[], []], "Sample 3 .*train of client 0 and train of client 1"),
        ([[3], [1]], [[], [3]], "Sample 3 .*train of client 0 and test of client 1"),
        ([[3], [1]], [[3], []], "Sample 3 .*train of client 0 and test of client 0.*'custom'"),
    ],
)
def test_validate_refuses(train, test, message):
    with pytest.raises(InputError, match=message):
        Partition.from_lists(train, test).validate(8, 3, LABELS)


def test_validate_checks_labels_and_label_map():
    example().validate(8, 3, LABELS)
    with pytest.raises(InputError, match=r"Number of labels must be 9, got 8"):
        example().validate(9, 3, LABELS)
    with pytest.raises(InputError, match=r"whole numbers in 0\.\.1, got '0\.\.2'"):
        example().validate(8, 2, LABELS)
    with pytest.raises(InputError, match=r"Label map must be \(3, 3\), got \(3, 2\)"):
        example(label_map=np.zeros((3, 2), int)).validate(8, 3, LABELS)
    with pytest.raises(InputError, match=r"Label map must be in 0\.\.2, got '0\.\.3'"):
        example(label_map=np.array([[0, 1, 3]] * 3)).validate(8, 3, LABELS)


def test_allowed_overlap_is_reported():
    p = Partition.from_lists(
        [[0, 1], [1, 2], [3]], [[4], [5, 2], [4]], allow_overlap=True, rule="file"
    )
    p.validate(8, 3, LABELS)
    facts = p.report(LABELS, 3)
    assert facts["overlapping_samples"] == 2  # sample 1 (clients 0, 1) and sample 4 (0, 2)
    assert facts["leaked_samples"] == 1  # sample 2 of client 1
    assert facts["unused_samples"] == 2
    assert "2 samples held by several clients, 1 in two splits of one client" in p.summary()
    with pytest.raises(InputError, match="listed twice"):
        Partition.from_lists([[1, 1]], [[]], allow_overlap=True).validate(8, 3, LABELS)


def test_report():
    assert example(options={"fallback_used": True}).report(LABELS, 3, fewer_than=2) == {
        "num_clients": 3,
        "sizes": {
            "train": {"min": 1, "mean": 2.0, "max": 3},
            "test": {"min": 0, "mean": 2 / 3, "max": 1},
            "validation": {"min": 0, "mean": 0.0, "max": 0},
        },
        "unused_samples": 0,
        "overlapping_samples": 0,
        "leaked_samples": 0,
        "small_clients": 1,
        "clients_without_test": 1,
        "mean_classes": 5 / 3,
        "hash": example().hash(),
        "fallback_used": True,
    }


def test_summary_is_five_lines():
    lines = example(rule="iid", options={"fallback_used": True}).summary().split("\n")
    assert lines == [
        "3 clients by rule 'iid' (samples moved to reach the minimum size)",
        "train: 1 to 3 samples a client, mean 2.0",
        "test: 0 to 1 samples a client, mean 0.7",
        "validation: 0 to 0 samples a client, mean 0.0",
        "0 samples held by several clients, 0 in two splits of one client, hash "
        + example().hash()[:12],
    ]


@pytest.mark.parametrize("value", [None, 1, 0.5, np.array(1), {1}.__iter__()])
def test_lists_of_clients_that_are_none(value):
    with pytest.raises(InputError, match=r"must be a list (for each client|or an array), got"):
        Partition.from_lists(value, [[1]])


@pytest.mark.parametrize(
    "fields", [{"options": 1}, {"rule": None}, {"label_map": [[0.5]]}, {"label_map": [[], [0, 1]]}]
)
def test_fields_of_another_type(fields):
    with pytest.raises(InputError, match=r"must be (a dict|text|an array of whole numbers), got"):
        Partition.from_lists([[0]], [[1]], **fields)


def test_no_clients_have_a_summary():
    assert Partition.from_lists([], []).summary().startswith("0 clients by rule 'custom'")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0], r"^Number of labels must be at least \d+, got 1\.$"),
        ([0.5] * 99, "^Labels of the pool must be a list of whole numbers in 0..2, got 'float64"),
        ([[0]] * 99, "^Labels of the pool must be a list of whole numbers in 0..2, got 'int64"),
        ([3] * 99, "^Labels of the pool must be a list of whole numbers in 0..2, got '0..3'"),
        ([-1] * 99, "^Labels of the pool must be a list of whole numbers in 0..2, got '-1..0'"),
    ],
)
def test_labels_of_another_pool(labels, message):
    with pytest.raises(InputError, match=message):
        example().class_counts(labels, 3)


def test_a_label_map_of_another_shape_counts_nothing():
    spoiled = replace(example(), label_map=np.zeros(7, int))
    with pytest.raises(InputError, match=r"^Label map must be \("):
        spoiled.class_counts([0] * 99, 3)
