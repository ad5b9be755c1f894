"""EMNIST and CIFAR from tiny files in the published formats and layouts."""

import tarfile

import numpy as np
import pytest

from fedjax_pfl.data.sources import cifar
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.published_files import (
    cifar_files,
    emnist_arrays,
    emnist_files,
    write_emnist_zip,
    write_tar,
)


@pytest.mark.parametrize("place", ["", "emnist", "gzip", "emnist/gzip"])
@pytest.mark.parametrize("zipped", [True, False])
def test_emnist_stands_upright(tmp_path, place, zipped):
    arrays = emnist_arrays()
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    if zipped:
        write_emnist_zip(folder / "gzip.zip", "balanced", arrays)
    else:
        for name, data in emnist_files("balanced", arrays).items():
            (folder / name).write_bytes(data)
    data = load_dataset("emnist/balanced", tmp_path)
    # The published images are transposed: row r of what people wrote is column r of the file.
    np.testing.assert_array_equal(data.train_x[0, 3, :, 0], arrays[0][0, :, 3])
    np.testing.assert_array_equal(data.test_x[2, 3, :, 0], arrays[2][2, :, 3])
    assert data.train_y.tolist() == [1, 5, 10, 1, 5, 10]
    assert (data.name, data.num_train, data.num_test) == ("emnist/balanced", 6, 3)
    assert data.train_x.flags.c_contiguous


@pytest.mark.parametrize(
    ("config", "classes", "names"),
    [
        ("byclass", 62, {0: "0", 10: "A", 36: "a", 61: "z"}),
        ("bymerge", 47, {35: "Z", 36: "a", 46: "t"}),
        ("balanced", 47, {35: "Z", 38: "d", 46: "t"}),
        ("letters", 26, {0: "A", 25: "Z"}),
        ("digits", 10, {9: "9"}),
        ("mnist", 10, {9: "9"}),
    ],
)
def test_classes_of_emnist(tmp_path, config, classes, names):
    top = classes if config == "letters" else classes - 1
    write_emnist_zip(tmp_path / "gzip.zip", config, emnist_arrays((1, top)))
    data = load_dataset(f"emnist/{config}", tmp_path)
    assert (data.num_classes, len(data.class_names)) == (classes, classes)
    assert {i: data.class_names[i] for i in names} == names
    assert data.train_y[:2].tolist() == ([0, 25] if config == "letters" else [1, top])
    write_emnist_zip(tmp_path / "gzip.zip", config, emnist_arrays((1, top + 1)))
    with pytest.raises(InputError, match=rf"Labels of data set 'emnist/{config}' must be in 0\.\."):
        load_dataset(f"emnist/{config}", tmp_path)


def test_bad_emnist(tmp_path):
    with pytest.raises(
        InputError, match=r"not found.*gzip\.zip \(from NIST\).*let TFDS prepare it"
    ):
        load_dataset("emnist/digits", tmp_path)
    write_emnist_zip(tmp_path / "gzip.zip", "letters", emnist_arrays((0, 5)))
    with pytest.raises(InputError, match=r"'emnist/letters' must be 1\.\.26, got 0"):
        load_dataset("emnist/letters", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["archive", "folder", "files", "nested", "path"])
def test_cifar(tmp_path, name, form):
    layout = cifar.LAYOUTS[name]
    files, images, labels = cifar_files(name)
    folder = {"folder": layout.folder, "nested": f"{name}/{layout.folder}"}.get(form, "")
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    if form in ("archive", "path"):
        write_tar(tmp_path / layout.archive, files, layout.folder)
    else:
        for file, data in files.items():
            (tmp_path / folder / file).write_bytes(data)
    place = tmp_path / layout.archive if form == "path" else tmp_path
    data = load_dataset(name, place)
    x, y = data.pool()
    np.testing.assert_array_equal(x, images)
    np.testing.assert_array_equal(y, labels)
    assert (data.num_test, data.num_classes) == (2, layout.num_classes)
    assert data.class_names[3] == ("b3" if name == "cifar10" else "f3")


CIFAR = "cifar-10-batches-bin"


@pytest.mark.parametrize(
    ("change", "folder", "message"),
    [
        ({}, "other", "holds no cifar-10-batches-bin/"),
        ({"test_batch.bin": None}, CIFAR, "lacks test_batch.bin"),
        ({"test_batch.bin": b""}, CIFAR, "test_batch.bin in .* records of 3073 bytes, got 0"),
        ({"data_batch_2.bin": b"\0" * 3000}, CIFAR, "data_batch_2.bin in .*got 3000 bytes"),
        ({"data_batch_2.bin": b"\x0b" * 3073}, CIFAR, r"'cifar10' must be in 0\.\.9, got '0\.\.11"),
    ],
)
def test_bad_cifar_archives(tmp_path, change, folder, message):
    files = {
        key: value
        for key, value in (cifar_files("cifar10")[0] | change).items()
        if value is not None
    }
    write_tar(tmp_path / "cifar-10-binary.tar.gz", files, folder)
    with pytest.raises(InputError, match=message):
        load_dataset("cifar10", tmp_path)


def test_links_in_cifar_archives(tmp_path):
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo(f"{CIFAR}/test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(InputError, match=r"holds no cifar-10-batches-bin/"):
        load_dataset("cifar10", tmp_path)


def test_cifar_with_pickles_is_not_opened(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(InputError, match="holds pickles: they can run any code and are never"):
        load_dataset("cifar10", tmp_path)
