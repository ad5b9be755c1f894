"""Files that crash, hang or fill the memory of whoever believes them."""

import io
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_pfl.data import limits
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.sources.test_bad_files import parquet, pictures
from tests.data.sources.test_hostile_archives import header
from tests.data.sources.test_source_registry import _nothing_of_this_machine  # noqa: F401

POOL = dataset_from_arrays("toy", np.zeros((4, 2), np.uint8), np.arange(4) % 2)


def npz(path, member, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name in ("x_train.npy", "y_train.npy"):
            archive.writestr(name, member)
    return path


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1.5, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 3, }",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (1, 3), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '3<f4', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': ['a'], 'fortran_order': False, 'shape': (1,), }",
        "['descr', 'fortran_order', 'shape']",
        "3",
    ],
)
def test_headers_of_arrays_that_lie(tmp_path, text):
    path = npz(tmp_path / "a.npz", header(text) + b"\0" * 12)
    with pytest.raises(InputError, match="can't be read as an NPZ file of plain arrays: "):
        load_dataset("npz", path)


def test_arrays_in_the_order_of_fortran_are_read(tmp_path):
    path = tmp_path / "a.npz"
    x = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    np.savez(path, x_train=x, y_train=np.array([0, 1, 1, 0]))
    np.testing.assert_array_equal(load_dataset("npz", path).train_x, x)


def test_members_spoiled_doubled_or_of_another_sum(tmp_path):
    path = npz(tmp_path / "a.npz", npy(np.zeros((400, 3))), zipfile.ZIP_LZMA)
    whole = bytearray(path.read_bytes())
    start = whole.index(b"x_train.npy") + len(b"x_train.npy")
    whole[start + 20 : start + 40] = b"\xff" * 20
    path.write_bytes(whole)
    with pytest.raises(InputError, match="can't be read as an NPZ file of plain arrays: "):
        load_dataset("npz", path)
    npz(path, npy(np.zeros((4, 3))))
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"NUMPY") + 130] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InputError, match="plain arrays: Bad CRC-32"):
        load_dataset("npz", path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x_train.npy", npy(np.ones((4, 3))))
    with pytest.raises(InputError, match="plain arrays: it holds 'x_train' twice"):
        load_dataset("npz", path)


def test_zeros_larger_than_the_machine_are_not_unpacked(tmp_path, little_memory):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x_train=np.zeros((2000, 100)), y_train=np.zeros(2000, int))
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match=r"a\.npz unpacked would take 1\.6 MB of memory, but 1\.0"):
        load_dataset("npz", path)


def test_free_memory_knows_the_limits_of_a_process():
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


def test_what_a_container_leaves(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    names = ("memory.max", "memory.current", "inactive_file")
    assert limits._limit(tmp_path, *names) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert limits._limit(tmp_path, *names) is None


def test_pipes_and_devices_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("npz", "text_csv"):
        with pytest.raises(InputError, match="pipe must be a regular file, but it is a named pipe"):
            load_dataset(name, tmp_path / "pipe")
        with pytest.raises(InputError, match="/dev/zero must be a regular file, but it is a devic"):
            load_dataset(name, "/dev/zero")
    for load in (Partition.load, lambda path: import_partition("flower", path, POOL)):
        with pytest.raises(InputError, match="pipe must be a regular file, but it is a named pipe"):
            load(tmp_path / "pipe")
        with pytest.raises(InputError, match="/dev/zero must be a regular file, but it is a devic"):
            load("/dev/zero")
    for name, file in (
        ("parquet", "train.parquet"),
        ("emnist/digits", "gzip.zip"),
        ("folder", "train/cat/a.png"),
    ):
        place = tmp_path / name.replace("/", "-")
        place.mkdir()
        if name == "folder":
            pictures(place)
        os.mkfifo(place / file)
        with pytest.raises(InputError, match=r"named pipe|was not found"):
            load_dataset(name, place)
        (place / file).unlink()
        (place / file).symlink_to("/dev/zero")
        with pytest.raises(InputError, match=r"a device|was not found"):
            load_dataset(name, place)


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
def test_paths_that_no_file_has(path, message):
    with pytest.raises(InputError, match=message):
        load_dataset("npz", path)
    for load in (Partition.load, lambda path: import_partition("flower", path, POOL)):
        with pytest.raises(InputError, match=message.replace("data_dir", r"Path of a \w+")):
            load(path)


def test_sentences_about_names_that_are_no_text_can_be_printed(tmp_path):
    pictures(tmp_path)
    name = os.fsdecode(b"a\xff.txt")
    (tmp_path / "train" / "cat" / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"entries that aren't images: a\\udcff\.txt") as caught:
        load_dataset("folder", tmp_path)
    str(caught.value).encode()
    (tmp_path / "train" / "cat" / name).rename(tmp_path / "train" / os.fsdecode(b"\xff"))
    with pytest.raises(InputError, match=r"must be UTF-8, got '\\udcff'|can't be read") as caught:
        (tmp_path / "train" / os.fsdecode(b"\xff")).unlink()
        (tmp_path / "train" / os.fsdecode(b"\xff")).mkdir()
        load_dataset("folder", tmp_path)
    str(caught.value).encode()


def deep_png(colour_type, channels):
    def chunk(name, data):
        crc = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + crc

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, colour_type, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress((b"\0" + b"\1\2" * 4 * channels) * 4))
    return b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b"")


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
def test_sixteen_bits_a_channel_are_refused(tmp_path, image):
    assert Image.open(io.BytesIO(image)).size == (4, 4)  # that Pillow would read
    pictures(tmp_path, a_png=image)
    with pytest.raises(InputError, match=r"a\.png has 16 bits a channel; 8 bits a channel are exp"):
        load_dataset("folder", tmp_path)


def test_texts_longer_than_memory_are_not_made(tmp_path, little_memory):
    path = tmp_path / "a.csv"
    path.write_text("0,a\n1,b\n")
    with pytest.raises(InputError, match=r"2 texts of 16,777,216 tokens \(max_length\) would take"):
        load_dataset("text_csv", path, max_length=2**24)


def test_more_classes_than_anything_has(tmp_path):
    with pytest.raises(InputError, match="num_classes must be at most 1048576, got 2147483647"):
        load_dataset(*parquet(tmp_path), num_classes=2**31 - 1)


def test_sentences_never_show_a_whole_array():
    assert str(InputError("short")) == "short"
    text = str(InputError(f"must be small, got {list(range(100_000))}."))
    assert len(text) < 4100 and text.startswith("must be small, got [0, 1")
    assert " ... " in text and text.endswith("99998, 99999].")


@pytest.mark.parametrize("names", [("a", "\ud800"), ("a", b"b"), ("a", None)])
def test_names_of_classes_are_text(names):
    with pytest.raises(InputError, match=r"class_names of data set 'toy' must be text that UTF-8"):
        dataset_from_arrays("toy", POOL.train_x, POOL.train_y, class_names=names)
