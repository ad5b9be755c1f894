"""Archives that are encrypted, headed by nonsense or far larger unpacked than any data set."""

import gzip
import struct
import zipfile

import numpy as np
import pytest

from fedjax_pfl.data import files, limits
from fedjax_pfl.data.cache import cached_arrays
from fedjax_pfl.data.sources.source_registry import load_dataset, read_idx
from fedjax_pfl.utils.errors import InputError
from tests.data.sources.test_archives import emnist_arrays, write_emnist_zip
from tests.data.sources.test_idx import idx_bytes
from tests.data.sources.test_source_registry import _nothing_of_this_machine  # noqa: F401


def header(text):
    """An .npy member that begins with this header."""
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


HUGE = "{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000, 8), }"


@pytest.mark.parametrize(
    "member",
    [b"hello", header("((((("), header("{'descr': "), header("1 +* 2"), header(HUGE), "encrypted"],
    ids=["bytes", "brackets", "open", "syntax", "huge", "encrypted"],
)
def test_members_that_are_no_arrays(tmp_path, member):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x_train.npy", "y_train.npy"):
            archive.writestr(name, b"" if member == "encrypted" else member)
    if member == "encrypted":
        path.write_bytes(encrypted(path.read_bytes()))
    with pytest.raises(InputError, match="can't be read as an NPZ file of plain arrays: "):
        load_dataset("npz", path)
    # A cache file in such a state is made anew.
    file = tmp_path / "cache" / "a-v1-k.npz"
    file.parent.mkdir()
    x_and_y = ("train_x", "train_y")
    with zipfile.ZipFile(file, "w") as archive:
        for name in x_and_y:
            archive.writestr(f"{name}.npy", b"" if member == "encrypted" else member)
    if member == "encrypted":
        file.write_bytes(encrypted(file.read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_PFL_CACHE", str(file.parent))
        made = cached_arrays("a", tmp_path, "k", lambda: dict.fromkeys(x_and_y, np.ones(2)))
        assert made["train_x"].tolist() == [1, 1]
        assert cached_arrays("a", tmp_path, "k", None)["train_x"].tolist() == [1, 1]


def encrypted(archive):
    """A ZIP file whose members say that they are encrypted."""
    data = bytearray(archive)
    for mark, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        start = data.find(mark)
        while start >= 0:
            data[start + flags] |= 1
            start = data.find(mark, start + 1)
    return bytes(data)


def test_gzip_files_far_too_large_are_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_FILE", 10_000)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((100, 28, 28)))))
    with pytest.raises(InputError, match=r"images\.gz unpacks to more than 10,000 bytes: it is"):
        read_idx(path, 3)


def test_npz_files_far_too_large_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x_train=np.zeros((10_000, 100)), y_train=np.zeros(10_000, int))
    monkeypatch.setattr(limits, "_SMALL", 0)
    monkeypatch.setattr(limits, "free", lambda: 2**20)
    with pytest.raises(
        InputError, match=r"a\.npz unpacked would take 8.1 MB of memory, but 1.0 MB"
    ):
        load_dataset("npz", path)


def test_emnist_zip_far_too_large_or_encrypted(tmp_path, monkeypatch):
    path = tmp_path / "gzip.zip"
    write_emnist_zip(path, "digits", emnist_arrays((1, 2, 7)))
    whole = path.read_bytes()
    monkeypatch.setattr(files, "LARGEST_FILE", 20)
    with pytest.raises(InputError, match=r"ubyte\.gz unpacks to more than 20 bytes"):
        load_dataset("emnist/digits", tmp_path)
    path.write_bytes(encrypted(whole))
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"is truncated or isn't a ZIP file: .*encrypted"):
        load_dataset("emnist/digits", tmp_path)
