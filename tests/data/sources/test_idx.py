"""IDX folders: MNIST's files as they are and packed, missing and damaged ones."""

import gzip

import numpy as np
import pytest

from fedjax_pfl.data.sources import published
from fedjax_pfl.data.sources.idx import read_idx
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.published_files import NAMES, idx_bytes


def write_idx_folder(folder, compressed=True):
    rng = np.random.default_rng(0)
    arrays = (
        rng.integers(0, 256, (12, 4, 3)),
        np.arange(12) % 10,
        rng.integers(0, 256, (5, 4, 3)),
        np.arange(5),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(NAMES, arrays, strict=True):
        data = idx_bytes(array)
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return arrays


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_idx_folder(tmp_path, name, compressed, nested):
    arrays = write_idx_folder(tmp_path / name if nested else tmp_path, compressed)
    data = load_dataset(name, tmp_path)
    np.testing.assert_array_equal(data.train_x[..., 0], arrays[0])
    np.testing.assert_array_equal(data.train_y, arrays[1])
    np.testing.assert_array_equal(data.test_x[..., 0], arrays[2])
    np.testing.assert_array_equal(data.test_y, arrays[3])
    assert data.train_x.dtype == np.uint8
    assert (data.name, data.num_classes, data.input_shape) == (name, 10, (4, 3, 1))
    x, y = data.pool()
    np.testing.assert_array_equal(x[12:], data.test_x)
    np.testing.assert_array_equal(y, np.concatenate([arrays[1], arrays[3]]))


def test_name_with_a_path(tmp_path):
    write_idx_folder(tmp_path)
    assert load_dataset(f"mnist:{tmp_path}").num_test == 5


def test_missing_data_says_where_it_looked_and_what_to_do(tmp_path):
    with pytest.raises(InputError) as caught:
        load_dataset("mnist", tmp_path)
    sentence = str(caught.value)
    for part in (str(tmp_path / "mnist"), f"{tmp_path})", f"{NAMES[0]}.gz", "npz:PATH", "'digits'"):
        assert part in sentence
    with pytest.raises(InputError, match=r"looked in: .*tfds/mnist\).*let TFDS prepare it"):
        load_dataset("mnist")


def test_fashion_mnist_of_debian(tmp_path, monkeypatch):
    with pytest.raises(
        InputError, match=r"/nowhere/fashion-mnist\).*install dataset-fashion-mnist"
    ):
        load_dataset("fashion_mnist", tmp_path)
    monkeypatch.setattr(published, "DEBIAN", tmp_path / "debian")
    write_idx_folder(tmp_path / "debian")
    assert load_dataset("fashion_mnist", tmp_path).num_train == 12
    assert load_dataset("fashion_mnist").class_names[9] == "Ankle boot"


IMAGES = idx_bytes(np.arange(24).reshape(2, 4, 3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + IMAGES, "isn't an IDX file of unsigned bytes"),
        (b"", "isn't an IDX file of unsigned bytes"),
        (IMAGES[:3], "isn't an IDX file of unsigned bytes"),
        (idx_bytes(np.zeros(5)), "has 1 axes where 3 are expected"),
        (IMAGES + b"\0", "announces 24 values but holds 25"),
        (IMAGES[:10], "announces 3 axis lengths"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_damaged_idx(tmp_path, data, message, suffix):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(InputError, match=message) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)


def test_unreadable_files(tmp_path):
    (tmp_path / "plain.gz").write_bytes(IMAGES)
    with pytest.raises(InputError, match=r"plain.gz can't be read as a gzip file"):
        read_idx(tmp_path / "plain.gz", 3)
    (tmp_path / "images.gz").mkdir()
    with pytest.raises(InputError, match=r"images\.gz must be a regular file, but it is a folder"):
        read_idx(tmp_path / "images.gz", 3)
