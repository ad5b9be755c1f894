"""NPZ files: what is read, and a sentence for each thing that is wrong."""

import numpy as np
import pytest

from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_npz(tmp_path):
    x = np.arange(4 * 6, dtype=np.float64).reshape(4, 2, 3)
    path = save(tmp_path / "mine.npz", x_train=x, y_train=[[0], [1], [2], [1]], other=np.zeros(3))
    for data in (load_dataset(f"npz:{path}"), load_dataset("npz", path)):
        assert (data.name, data.num_classes, data.num_test) == ("mine", 3, 0)
        assert data.train_x.shape == (4, 2, 3, 1)
        assert data.train_x.dtype == np.float32
        assert data.train_y.tolist() == [0, 1, 2, 1]
        assert data.input_scaling == "raw"
        assert data.test_x.shape == (0, 2, 3, 1)


def test_npz_with_a_test_split(tmp_path):
    x = np.full((3, 5), 9, np.uint8)
    path = save(tmp_path / "a.npz", x_train=x, y_train=[0, 1, 0], x_test=x[:1], y_test=[2])
    data = load_dataset(f"npz:{path}")
    assert (data.num_test, data.num_classes, data.input_shape) == (1, 3, (5,))
    assert data.input_scaling == "half"


GOOD = {"x_train": np.zeros((3, 5)), "y_train": np.array([0, 1, 1])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((3, 5, 5), np.int64)}, "must be uint8 or float, .* got 'int64'"),
        ({"x_train": np.full((3, 5), 1e300)}, "got '15 NaN or infinite values'"),
        ({"x_train": np.zeros(3)}, r"\[n, d\], \[n, h, w\] or \[n, h, w, c\], got \(3,\)"),
        ({"x_train": np.zeros((3, 0))}, "without an empty axis"),
        ({"x_train": np.zeros((0, 5)), "y_train": np.zeros(0, int)}, "must be at least 1, got 0"),
        ({"y_train": np.array([0.0, 1, 1])}, r"=task=regression\), got 'float64'"),
        ({"y_train": np.array([0, 1])}, r"must be \(3,\), one per sample, got \(2,\)"),
        ({"y_train": np.array([0, -1, 1])}, "must be integers 0..C-1, got '-1..1'"),
        (
            {"y_train": np.array([1, 2, 3])},
            "label 0 never occurs while label 3 does.* dataset_from_arrays",
        ),
        ({"x_test": np.zeros((1, 5))}, "both of x_test and y_test or neither"),
        ({"x_test": np.zeros((1, 4)), "y_test": np.zeros(1, int)}, "both must be the same"),
    ],
)
def test_bad_npz(tmp_path, change, message):
    path = save(tmp_path / "bad.npz", **(GOOD | change))
    with pytest.raises(InputError, match=message):
        load_dataset(f"npz:{path}")


def test_id_columns_have_a_value_for_each_sample(tmp_path):
    arrays = GOOD | {"x_test": np.zeros((2, 5)), "y_test": np.zeros(2, int)}
    users = {"user_train": [7, 7, 8], "user_test": [[8], [9]]}
    path = save(tmp_path / "a.npz", **arrays, **users)
    assert load_dataset(f"npz:{path}", id_columns="user").columns["user"].tolist() == [
        7,
        7,
        8,
        8,
        9,
    ]
    path = save(tmp_path / "a.npz", **arrays, user_train=[7, 7, 8, 8], user_test=[9])
    with pytest.raises(InputError, match=r"user_train .* must be as many .* of x_train, got 4"):
        load_dataset(f"npz:{path}", id_columns="user")


def test_npz_files_that_are_not(tmp_path):
    with pytest.raises(InputError, match=r"No file .*none\.npz"):
        load_dataset(f"npz:{tmp_path}/none.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"one array must be an NPZ file, by np\.savez"):
        load_dataset(f"npz:{tmp_path}/one.npy")
    path = save(tmp_path / "names.npz", X=np.zeros((3, 5)), y=np.zeros(3, int))
    with pytest.raises(InputError, match="lacks x_train, y_train; arrays found: X, y"):
        load_dataset(f"npz:{path}")
