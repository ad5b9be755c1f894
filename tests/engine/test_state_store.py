"""Rows of clients' states in host memory or in a file: what was written last, and full disks."""

import errno
import os

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import state_store
from fedjax_pfl.engine.state_records import FileRecords
from fedjax_pfl.engine.state_store import HostStore


def test_rows_are_what_was_written_last_and_at_first_what_all_have(tmp_path):
    first = [np.arange(12.0).reshape(2, 1, 6), np.arange(20, dtype=np.int16).reshape(2, 10, 1)]
    rows = np.array([[1, 4, 7], [0, 4, 9]])
    rng = np.random.default_rng(0)
    for limit in (0, 1e9):  # in a file, in memory
        store = HostStore(first, 10, 6, tmp_path, limit)
        expected = [np.broadcast_to(leaf, (2, 10, *leaf.shape[2:])).copy() for leaf in first]
        for at in (rows, rows[:, :2] + 1):
            values = [rng.normal(size=(*at.shape, 6)), rng.integers(99, size=(*at.shape, 1))]
            values[1] = values[1].astype(np.int16)
            store.write(at, values)
            for leaf, value in zip(expected, values, strict=True):
                leaf[np.arange(2)[:, None], at] = value
        everyone = np.broadcast_to(np.arange(10), (2, 10))
        for got, leaf in zip(store.read(everyone), expected, strict=True):
            np.testing.assert_array_equal(got, leaf)
        assert store.read_written()[0].tolist() == [0, 1, 2, 4, 5, 7, 9]
    assert not list(tmp_path.iterdir())  # the file has no name


def test_a_store_has_its_own_clients_rows_and_zeros_for_others(tmp_path):
    first, own = [np.full((1, 1, 2), 5.0)], np.array([True, True, False, False])
    for limit in (0, 1e9):  # in a file, in memory
        store = HostStore(first, 4, 9, tmp_path, limit, own)
        store.write(np.array([[3, 1]]), [np.array([[[3.0, 3], [1, 1]]])])
        assert store.written.any(axis=0).tolist() == [False, True, False, True]  # all know it
        assert isinstance(store.records, FileRecords) == (limit == 0)
        (rows,) = store.read(np.array([[0, 1, 2, 3]]))
        assert rows[0, :, 0].tolist() == [5, 1, 0, 0]


def test_rows_of_all_processes_are_collected_in_pieces(tmp_path, monkeypatch):
    """By one process, which has all of them."""
    monkeypatch.setattr(state_store, "PIECE", 32)  # two clients' rows of two runs
    first, own = [np.zeros((2, 1, 2), np.float32)], np.arange(7) != 2
    store = HostStore(first, 7, 9, tmp_path / "not there", 1e9, own)
    rows = np.array([[5, 1, 3], [5, 6, 0]])
    store.write(rows, [np.arange(12, dtype=np.float32).reshape(2, 3, 2) - 3])
    touched, (found,) = store.read_written()
    assert touched.tolist() == [0, 1, 3, 5, 6]
    (expected,) = store.read(np.broadcast_to(touched, (2, 5)))
    np.testing.assert_array_equal(found, expected)


def test_rows_of_a_whole_state_that_are_as_at_first_are_not_written():
    """Of 250 clients, more than are looked at once; each run has its own first rows."""
    first = [np.array([0.0, np.nan]).reshape(2, 1, 1), np.arange(500.0).reshape(2, 250, 1)]
    leaves = [np.broadcast_to(leaf, (2, 250, 1)).copy() for leaf in first]
    leaves[0][0, 3] = -0.0
    leaves[1][1, [99, 100, 249]] = -1
    store = HostStore(first, 250, 10)
    store.write_changed(leaves)
    assert store.read_written()[0].tolist() == [3, 99, 100, 249]
    everyone = np.broadcast_to(np.arange(250), (2, 250))
    for got, leaf in zip(store.read(everyone), leaves, strict=True):
        assert got.tobytes() == leaf.tobytes()


def test_a_file_may_be_larger_than_an_int32_counts(tmp_path):
    first = [np.broadcast_to(np.zeros(1, np.uint8), (1, 1, 2**20))]
    store, at = HostStore(first, 5000, 1, tmp_path, 0), np.array([[4999]], np.int32)
    store.write(at, [np.full((1, 1, 2**20), 7, np.uint8)])
    np.testing.assert_array_equal(store.read(at)[0], 7)


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    first = [np.zeros((1, 1, 6))]
    much = np.broadcast_to(np.zeros(1), (1, 1, 2**45))  # takes no memory
    with pytest.raises(pfl.OutputError, match=r"may take .* in a file in .* are free"):
        HostStore([much], 1000, 1000, tmp_path, 0)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = HostStore(first, 10, 6, tmp_path, 0)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(pfl.OutputError, match=r"can't be written to .*: No space left on device"):
        store.write(np.array([[3]]), [np.ones((1, 1, 6))])
    assert not store.written.any()
