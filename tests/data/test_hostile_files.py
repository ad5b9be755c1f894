"""Files that would crash, hang or fill the memory of a reader that trusts them."""

import gzip
import io
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedjax_pfl.data import files, limits
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.sources.idx import read_idx
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import black, parquet, pictures, raw_png
from tests.data.published_files import emnist_arrays, idx_bytes, write_emnist_zip

POOL = dataset_from_arrays("toy", np.zeros((4, 2), np.uint8), np.arange(4) % 2)
NO_NPZ = "can't be read as an NPZ file of plain arrays: "
NO_ZIP = r"can't be read as a ZIP file: .*encrypted"


def npz(path, member, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name in ("x_train.npy", "y_train.npy"):
            archive.writestr(name, member)
    return path


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(text):
    """An .npy member that begins with this header."""
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def encrypted(archive):
    """A ZIP file whose members are marked as encrypted."""
    data = bytearray(archive)
    for mark, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        start = data.find(mark)
        while start >= 0:
            data[start + flags] |= 1
            start = data.find(mark, start + 1)
    return bytes(data)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1.5, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 3, }",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (1, 3), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (100000000000000000, 8), }",
        "{'descr': ['a'], 'fortran_order': False, 'shape': (1,), }",
        "['descr', 'fortran_order', 'shape']",
        "{'descr': ",
        "((((((",
        None,
    ],
)
def test_members_that_are_not_arrays(tmp_path, text):
    member = b"hello" if text is None else header(text) + b"\0" * 12
    path = npz(tmp_path / "a.npz", member)
    with pytest.raises(InputError, match=f"a.npz ({NO_NPZ}|takes more memory than there is)"):
        load_dataset("npz", path)


def test_arrays_in_fortran_order_are_read(tmp_path):
    path = tmp_path / "a.npz"
    x = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    np.savez(path, x_train=x, y_train=np.array([0, 1, 1, 0]))
    np.testing.assert_array_equal(load_dataset("npz", path).train_x, x)


def test_members_damaged_doubled_or_encrypted(tmp_path):
    path = npz(tmp_path / "a.npz", npy(np.zeros((400, 3))), zipfile.ZIP_LZMA)
    content = bytearray(path.read_bytes())
    start = content.index(b"x_train.npy") + len(b"x_train.npy")
    content[start + 20 : start + 40] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(InputError, match=NO_NPZ):
        load_dataset("npz", path)
    content = bytearray(npz(path, npy(np.zeros((4, 3)))).read_bytes())
    path.write_bytes(encrypted(content))
    with pytest.raises(InputError, match=f"{NO_NPZ}.*encrypted"):
        load_dataset("npz", path)
    content[content.index(b"NUMPY") + 130] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{NO_NPZ}Bad CRC-32"):
        load_dataset("npz", path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x_train.npy", npy(np.ones((4, 3))))
    with pytest.raises(InputError, match=f"{NO_NPZ}two arrays have the same name"):
        load_dataset("npz", path)


def test_arrays_larger_than_memory_are_not_unpacked(tmp_path, little_memory):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x_train=np.zeros((2000, 100)), y_train=np.zeros(2000, int))
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match=r"a\.npz unpacked would take 1\.6 MB of memory, but 1\.0"):
        load_dataset("npz", path)
    (tmp_path / "a.csv").write_text("0,a\n1,b\n")
    with pytest.raises(InputError, match=r"2 texts of 16,777,216 tokens \(max_length\) would take"):
        load_dataset("text_csv", tmp_path / "a.csv", max_length=2**24)
    (tmp_path / "a.csv").write_text("0,a\n" * 30_000)
    with pytest.raises(InputError, match=r"cells of .*a\.csv would take 1\.2 MB"):
        load_dataset("text_csv", tmp_path / "a.csv")
    table = pa.table({"a": np.zeros(10**5), "label": [0, 1] * 50_000})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"cells of .*t\.parquet would take 1\.6 MB"):
        load_dataset("table", tmp_path / "t.parquet")
    parquet(tmp_path, images=[black() + b"\0" * 2**21] * 2)
    with pytest.raises(InputError, match=r"group of rows of .*train\.parquet would take 2\.1 MB"):
        load_dataset("parquet", tmp_path)
    (tmp_path / "images").write_bytes(bytes(1_100_000))
    with pytest.raises(InputError, match=r"images would take 1\.1 MB"):
        read_idx(tmp_path / "images", 3)


def test_gzip_files_far_too_large_are_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_FILE", 10_000)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((100, 28, 28)))))
    with pytest.raises(InputError, match=r"images\.gz unpacks to more than 10,000 bytes: it is"):
        read_idx(path, 3)


def test_emnist_zip_far_too_large_or_encrypted(tmp_path, monkeypatch):
    path = tmp_path / "gzip.zip"
    write_emnist_zip(path, "digits", emnist_arrays((1, 2, 7)))
    content = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(files, "LARGEST_FILE", 20)
        with pytest.raises(InputError, match=r"ubyte\.gz unpacks to more than 20 bytes"):
            load_dataset("emnist/digits", tmp_path)
    path.write_bytes(encrypted(content))
    with pytest.raises(InputError, match=NO_ZIP):
        load_dataset("emnist/digits", tmp_path)


@pytest.mark.costly
def test_free_memory_respects_the_limits_of_a_process():
    code = (
        "import resource\nfrom fedjax_pfl.data import limits\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**45, 2**45))\nwide = limits.free()\n"
        "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (taken + 10**8, 2**45))\n"
        "assert wide > limits.free() and limits.free() <= 10**8, (wide, limits.free())\n"
    )
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_free_memory_respects_the_limits_of_a_container(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    assert limits._left(tmp_path, "") == 500
    (tmp_path / "memory.max").write_text("max\n")
    with pytest.raises(ValueError, match="max"):  # no limit
        limits._left(tmp_path, "")


READERS = [
    lambda path: load_dataset("npz", path),
    lambda path: load_dataset("text_csv", path),
    Partition.load,
    lambda path: import_partition("flower", path, POOL),
]


@pytest.mark.parametrize("read", READERS)
def test_pipes_and_devices_are_not_opened(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe must be a regular file, but it is a named pipe"):
        read(tmp_path / "pipe")
    with pytest.raises(InputError, match="/dev/zero must be a regular file, but it is a device"):
        read("/dev/zero")


@pytest.mark.parametrize(
    ("name", "file"),
    [("parquet", "train.parquet"), ("emnist/digits", "gzip.zip"), ("folder", "train/cat/a.png")],
)
def test_pipes_and_devices_in_folders(tmp_path, name, file):
    if name == "folder":
        pictures(tmp_path)
    os.mkfifo(tmp_path / file)
    with pytest.raises(InputError, match=r"named pipe|was not found"):
        load_dataset(name, tmp_path)
    (tmp_path / file).unlink()
    (tmp_path / file).symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"a device|was not found"):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("~nobody_of_this_name/a", r"data_dir is '~nobody_of_this_name/a', but there is no such h"),
        ("a\0b", r"data_dir must be a path in UTF-8 without NUL, got 'a\\x00b'"),
        ("a\udc80b", r"data_dir must be a path in UTF-8 without NUL, got 'a\\udc80b'"),
        ("a" * 300, "can't be read: File name too long|No file"),
        ("b/" * 3000, "can't be read: File name too long|No file"),
    ],
)
@pytest.mark.parametrize("read", [READERS[0], *READERS[2:]])
def test_impossible_paths(path, message, read):
    with pytest.raises(InputError, match=message.replace("data_dir", r"(data_dir|Path of a \w+)")):
        read(path)


def test_messages_about_names_that_are_not_text_can_be_printed(tmp_path):
    pictures(tmp_path)
    name = os.fsdecode(b"a\xff.txt")
    (tmp_path / "train" / "cat" / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"entries that aren't images: a\\udcff\.txt") as caught:
        load_dataset("folder", tmp_path)
    str(caught.value).encode()
    (tmp_path / "train" / "cat" / name).unlink()
    (tmp_path / "train" / os.fsdecode(b"\xff")).mkdir()
    with pytest.raises(InputError, match=r"must be UTF-8, got '\\udcff'|can't be read") as caught:
        load_dataset("folder", tmp_path)
    str(caught.value).encode()


def deep_png(colour_type, channels):
    return raw_png(4, 4, 16, colour_type, (b"\0" + b"\1\2" * 4 * channels) * 4)


@pytest.mark.parametrize(
    "image",
    [
        deep_png(0, 1),
        deep_png(2, 3),
        deep_png(4, 2),
        deep_png(6, 4),
        b"P6 4 4 65535\n" + b"\1\2" * 48,
        b"P5 4 4 256\n" + b"\1\2" * 16,
        b"P3 4 4 1023\n" + b"1 " * 48,
    ],
)
def test_16_bit_images_are_refused(tmp_path, image):
    assert Image.open(io.BytesIO(image)).size == (4, 4)  # Pillow reads it
    pictures(tmp_path, a_png=image)
    with pytest.raises(InputError, match=r"a\.png has 16 bits a channel; 8 bits a channel are exp"):
        load_dataset("folder", tmp_path)


def test_more_classes_than_any_data_set_has(tmp_path):
    with pytest.raises(InputError, match=r"must be a whole number in 1\.\.1048576, got 2147483647"):
        load_dataset(*parquet(tmp_path), num_classes=2**31 - 1)


def test_messages_never_show_a_long_list_in_full():
    assert str(InputError("short")) == "short"
    text = str(InputError(f"must be small, got {list(range(100_000))}."))
    assert len(text) < 4100 and text.startswith("must be small, got [0, 1")
    assert " ... " in text and text.endswith("99998, 99999].")


@pytest.mark.parametrize("names", [("a", "\ud800"), ("\ud800", "a")])
def test_class_names_are_text(names):
    with pytest.raises(InputError, match=r"class_names of data set 'toy' must be text that UTF-8"):
        dataset_from_arrays("toy", POOL.train_x, POOL.train_y, class_names=names)
