"""The cache of decoded images: when it is used, when it is made again, and its place."""

import os

import numpy as np
import pytest
from PIL import Image

from fedjax_pfl.data import cache
from fedjax_pfl.data.sources import images as sources_images
from fedjax_pfl.data.sources import parquet
from fedjax_pfl.data.sources.source_registry import load_dataset
from tests.data.image_files import class_folders, colour, write, write_parquet


@pytest.fixture
def jpegs(tmp_path, monkeypatch):
    """A folder of Parquet files, and how many images were decoded."""
    folder = tmp_path / "cifar10_jpeg"
    for split, labels in (("train", [3, 1]), ("test", [2])):
        write_parquet(folder / f"{split}.parquet", [colour() for _ in labels], labels)
    decoded = []

    def decode(images, count, *rest):
        decoded.append(count)
        return decode_images(images, count, *rest)

    decode_images = parquet.decode_images
    monkeypatch.setattr(parquet, "decode_images", decode)
    monkeypatch.setattr(sources_images, "decode_images", decode)
    monkeypatch.delenv("FEDJAX_PFL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return folder, decoded


def same(a, b):
    return a.fingerprint() == b.fingerprint()


def test_decoded_once_beside_the_data(tmp_path, jpegs):
    folder, decoded = jpegs
    first = load_dataset("cifar10_jpeg", tmp_path)
    assert "lossy: not comparable with CIFAR-10" in first.note
    again = load_dataset("cifar10_jpeg", folder)
    assert same(first, again) and decoded == [2, 1]
    (file,) = (folder / ".fedjax_pfl_cache").iterdir()
    assert file.name.startswith("cifar10_jpeg-v1-") and not (tmp_path / "home").exists()
    # Another content under the same name is another hash.
    write_parquet(folder / "test.parquet", [colour()], [2])
    assert not same(first, load_dataset("cifar10_jpeg", tmp_path)) and len(decoded) == 4


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", "torn", "pickle", "names"])
def test_a_damaged_cache_file_is_made_anew(tmp_path, jpegs, content):
    folder, decoded = jpegs
    first = load_dataset("cifar10_jpeg", tmp_path)
    (file,) = (folder / ".fedjax_pfl_cache").iterdir()
    content_before = file.read_bytes()
    if content == "torn":
        file.write_bytes(content_before[:200] + b"\xff\xff" + content_before[202:])
    elif content == "pickle":
        with file.open("wb") as out:
            np.savez(out, names=np.array([{}], object))
    elif content == "names":
        with file.open("wb") as out:
            np.savez(out, names=np.array(["train_x"]))
    else:
        file.write_bytes(content)
    assert same(first, load_dataset("cifar10_jpeg", tmp_path)) and len(decoded) == 4
    assert file.read_bytes() == content_before


def test_read_only_data_is_cached_in_the_users_folder(tmp_path, jpegs):
    folder, decoded = jpegs
    (folder / ".fedjax_pfl_cache").write_bytes(b"a file: no folder can be made here")
    first = load_dataset("cifar10_jpeg", tmp_path)
    assert [path.suffix for path in (tmp_path / "home/fedjax_pfl").iterdir()] == [".npz"]
    assert same(first, load_dataset("cifar10_jpeg", tmp_path)) and len(decoded) == 2


def test_no_cache_anywhere_is_no_error(tmp_path, jpegs):
    folder, decoded = jpegs
    (folder / ".fedjax_pfl_cache").write_bytes(b"")
    (tmp_path / "home").write_bytes(b"")
    first = load_dataset("cifar10_jpeg", tmp_path)
    assert same(first, load_dataset("cifar10_jpeg", tmp_path)) and len(decoded) == 4


def test_a_chosen_cache_folder(tmp_path, jpegs, monkeypatch):
    monkeypatch.setenv("FEDJAX_PFL_CACHE", str(tmp_path / "chosen"))
    load_dataset("cifar10_jpeg", tmp_path)
    assert len(list((tmp_path / "chosen").iterdir())) == 1
    assert not (jpegs[0] / ".fedjax_pfl_cache").exists()


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("FEDJAX_PFL_CACHE", str(tmp_path))
    monkeypatch.setattr(cache.np, "savez", fail)
    made = cache.cached_arrays("a", tmp_path, "k", dict)
    assert made == {} and list(tmp_path.iterdir()) == []


def test_folders_are_cached_by_listing(tmp_path, jpegs):
    decoded = jpegs[1]
    root = tmp_path / "mine"
    class_folders(root)
    first = load_dataset("folder", root)
    assert same(first, load_dataset("folder", root)) and decoded == [8]
    load_dataset("folder", root, image_size=3)
    write(root / "test/dog/1.png", colour((4, 5)))
    assert not same(first, load_dataset("folder", root)) and decoded == [8, 8, 8]


def lookalikes(root, seed):
    """A folder `mine` of class folders, alike in names, sizes and times whatever the seed."""
    rng = np.random.default_rng(seed)
    for name in ("cat", "dog"):
        for i in range(2):
            path = root / "mine" / "train" / name / f"{i}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8)).save(path)
            os.utime(path, (0, 0))
    return root / "mine"


def test_folders_of_equal_listings_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_PFL_CACHE", str(tmp_path / "cache"))
    a, b = (load_dataset("folder", lookalikes(tmp_path / str(k), k)) for k in range(2))
    assert a.name == b.name and not same(a, b)
    # The same folder with another content, sizes and times kept.
    lookalikes(tmp_path / "0", 1)
    assert same(b, load_dataset("folder", tmp_path / "0" / "mine"))


def test_listings_are_probed_evenly(tmp_path):
    files = []
    for i in range(1000):
        files.append(tmp_path / f"{i:03}")
        files[-1].write_bytes(b"a")
        os.utime(files[-1], (0, 0))
    first = cache.hash_of_listing(files, tmp_path, "")
    for file in files[500:516]:
        file.write_bytes(b"b")
        os.utime(file, (0, 0))
    assert cache.hash_of_listing(iter(files), tmp_path, "") != first


def test_a_file_of_the_same_size_and_time_is_another_file(tmp_path):
    for k in range(3 * cache._PROBES):
        (tmp_path / f"{k:03}").write_bytes(b"first")
    files = sorted(tmp_path.iterdir())
    before, stat = cache.hash_of_listing(files, tmp_path, ""), files[1].stat()
    assert cache.hash_of_listing(files, tmp_path, "") == before
    files[1].write_bytes(b"other")  # no probe reads this one
    os.utime(files[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache.hash_of_listing(files, tmp_path, "") != before


def test_a_user_without_a_home(jpegs, monkeypatch):
    folder, _ = jpegs

    def nowhere(path):
        if str(path).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return path

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(cache.Path, "expanduser", nowhere)
    (folder / ".fedjax_pfl_cache").write_bytes(b"")  # nothing can be written beside the data
    assert len(load_dataset("cifar10_jpeg", folder).train_x) == 2
