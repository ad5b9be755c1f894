"""Recordings of sensors, cut into windows; seglearn's smartwatch data where it is installed."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError

PAGE = Path(__file__).parents[3] / "docs/data_sources.md"
GOOD = {
    "recordings": np.stack([np.arange(30.0), -np.arange(30.0)], axis=1),
    "lengths": np.array([12, 2, 16]),
    "labels": np.array(["walk", "run", "rest"]),
    "subject": np.array([4, 4, 2]),
}


def saved(folder, **change):
    np.savez(folder / "a.npz", **(GOOD | change))
    return f"recordings:{folder / 'a.npz'}"


def begins(x):
    """Where each window begins in `GOOD`'s signal, which counts up."""
    np.testing.assert_array_equal(x[:, :, 0, 1], -x[:, :, 0, 0])
    np.testing.assert_array_equal(np.diff(x[:, :, 0, 0], axis=1), 1)
    return x[:, 0, 0, 0].tolist()


def test_windows(tmp_path):
    data = load_dataset(saved(tmp_path), window=3)
    assert data.train_x.shape == (7, 3, 1, 2)
    assert begins(data.train_x) == [0, 3, 6, 14, 17, 20, 23]  # 9 of 12 moments, then 12 of 16
    assert begins(data.test_x) == [9, 26]
    assert [data.class_names[y] for y in data.labels] == ["walk"] * 3 + ["rest"] * 4 + [
        "walk",
        "rest",
    ]
    assert data.columns["subject"].tolist() == [4] * 3 + [2] * 4 + [4, 2]
    assert data.input_scaling == "standard"
    assert data.note == "no test window of 1 recordings: 1"
    p = make_partition("by_column", data, None, 0)
    assert p.names == ("subject_2", "subject_4")
    assert p.client("test", 1).tolist() == [7]


def test_overlapping_windows_and_no_tests(tmp_path):
    data = load_dataset(saved(tmp_path), window=10, step=2, test_fraction=0.0)
    assert begins(data.train_x) == [0, 2, 14, 16, 18, 20]
    assert data.num_test == 0


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"lengths": np.array([12, 2, 15])}, {}, "whole numbers that add up to 30, the length of"),
        (  # their sum is 30 where it wraps around
            {"lengths": np.array([2**63, 2**63, 30], np.uint64)},
            {},
            "whole numbers that add up",
        ),
        ({"recordings": np.zeros(30)}, {}, r"must be floats \[total, channels\]"),
        ({"labels": np.array([0, 1])}, {}, r"'labels' .* must be \(3,\), got \(2,\)"),
        ({"subject": np.array([0.5, 1, 2])}, {}, "'subject' .* must be whole numbers or text"),
        (
            {},
            {"window": 13},
            "No recording in .* has a window of 13 time steps .* longest has 16, 0.2",
        ),
        (
            {},
            {"window": 5, "step": 1},
            "has a window of 5 time steps to test on, in its last part of 0.25: change",
        ),
        ({}, {"window": 0}, "window must be a whole number of at least 1, got 0"),
        ({}, {"test_fraction": 1}, r"test_fraction must be in \[0, 1\), got 1"),
    ],
)
def test_bad_recordings(tmp_path, change, options, message):
    with pytest.raises(InputError, match=message):
        load_dataset(saved(tmp_path, **change), **options)


def test_other_tasks(tmp_path):
    numbers = load_dataset(saved(tmp_path, labels=[0.5, 2.0, -1.5]), window=3, task="regression")
    assert numbers.train_y.tolist() == [[0.5]] * 3 + [[-1.5]] * 4 and numbers.columns.keys() == {
        "subject"
    }
    several = [[0, 1], [1, 1], [1, 0]]
    labels = load_dataset(saved(tmp_path, labels=several), window=3, task="multi_label")
    assert labels.test_y.tolist() == [[0, 1], [1, 0]] and labels.num_outputs == 2
    for task, message in {
        "regression": "must be numbers",
        "next_token": "must be 'classif",
    }.items():
        with pytest.raises(InputError, match=message):
            load_dataset(saved(tmp_path), task=task)


def test_the_watch_data_of_seglearn(tmp_path, monkeypatch):
    """The page's lines convert it; nothing here unpickles."""
    if importlib.util.find_spec("seglearn") is None:
        pytest.skip("needs the package seglearn 1.2, which has the recordings")
    (lines,) = re.findall(
        r"```python\n(.*?watch_dataset.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(lines, PAGE.name, "exec"), {})
    data = load_dataset("recordings:watch.npz")
    assert data.input_shape == (100, 1, 6)
    assert data.class_names == ("ABD", "ER", "FEL", "IR", "PEN", "ROW", "TRAP")
    assert (data.num_train, data.num_test) == (1767, 539)
    p = make_partition("by_column", data, None, 0)
    assert p.names == tuple(f"subject_{i}" for i in range(1, 11))
    assert p.sizes("test").min() == 31
