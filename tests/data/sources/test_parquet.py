"""Parquet files with image bytes: columns, rows and files that can't be."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.cli import data_flags, flags
from fedjax_pfl.data.sources.source_registry import DATASETS, load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import colour, png, write_parquet


@pytest.mark.parametrize("place", ["", "data"])
@pytest.mark.parametrize("binary", [True, False])
def test_parquet(tmp_path, place, binary):
    arrays = [colour() for _ in range(5)]
    folder = tmp_path / "mine" / place
    write_parquet(folder / "train-0.parquet", arrays[:2], [0, 2], names=list("abcd"), binary=binary)
    write_parquet(folder / "train-1.parquet", arrays[2:4], [1, 0], binary=binary)
    write_parquet(folder / "test.parquet", arrays[4:], [2], binary=binary)
    data = load_dataset("parquet", tmp_path / "mine")
    np.testing.assert_array_equal(data.pool()[0], arrays)
    assert data.labels.tolist() == [0, 2, 1, 0, 2]
    assert (data.name, data.num_test, data.num_classes) == ("mine", 1, 4)
    assert data.class_names == tuple("abcd")


def test_parquet_columns(tmp_path):
    write_parquet(tmp_path / "train.parquet", [colour()], [4], "picture", "kind")
    with pytest.raises(
        InputError, match="of image bytes called image or img; its columns: picture"
    ):
        load_dataset("parquet", tmp_path)
    with pytest.raises(InputError, match=r"of integer labels called label or .*Give label_column"):
        load_dataset("parquet", tmp_path, image_column="picture")
    options = {"image_column": "picture", "label_column": "kind"}
    with pytest.raises(InputError, match="label 0 never occurs while label 4 does"):
        load_dataset("parquet", tmp_path, **options)
    assert load_dataset("parquet", tmp_path, **options, num_classes=5).num_test == 0
    options = {"image_column": "kind", "label_column": "picture"}
    with pytest.raises(InputError, match=r"Column 'kind' of .* must hold image bytes, got int64"):
        load_dataset("parquet", tmp_path, **options)
    with pytest.raises(InputError, match=r"Column 'picture' of .* must hold integers, got st"):
        load_dataset("parquet", tmp_path, image_column="picture", label_column="picture")


def test_all_files_name_the_classes_alike(tmp_path):
    write_parquet(tmp_path / "train.parquet", [colour()] * 2, [0, 1], names=["cat", "dog"])
    write_parquet(tmp_path / "test.parquet", [colour()] * 2, [0, 1], names=["dog", "cat"])
    message = r"train\.parquet and .*test\.parquet must name the same classes of 'label' in one"
    with pytest.raises(InputError, match=message):
        load_dataset("parquet", tmp_path)


def test_all_files_have_the_columns_of_the_first(tmp_path):
    write_parquet(tmp_path / "train.parquet", [colour()] * 2, [0, 1])
    write_parquet(tmp_path / "test.parquet", [colour()] * 2, [0, 1], label="fine_label")
    with pytest.raises(InputError, match=r"test\.parquet has no column .* called label; its col"):
        load_dataset("parquet", tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["train", "train-00000-of-00002", "train-00001-of-00002"],
            "each of the 2 parts of 'train' .* got 3",
        ),
        (["train-00000-of-00002"], "each of the 2 parts of 'train' .* got 1"),
        (["train", "test-00001-of-00002-abc"], "each of the 2 parts of 'test' .* got 1"),
        (
            ["train-00000-of-00001-abc", "train-00000-of-00001-def"],
            "each of the 1 parts of 'train' .* got 2",
        ),
    ],
)
def test_parts_of_a_split_are_complete_and_there_once(tmp_path, names, message):
    for name in names:
        write_parquet(tmp_path / f"{name}.parquet", [colour()], [0])
    with pytest.raises(InputError, match=message):
        load_dataset("parquet", tmp_path)


@pytest.mark.parametrize("low", [0, 1])
def test_parts_of_a_split_are_joined(tmp_path, low):
    for k in range(12):
        write_parquet(tmp_path / f"train-{low + k}-of-12.parquet", [colour()], [0])
    write_parquet(tmp_path / "train-more.parquet", [colour()], [0])
    assert load_dataset("parquet", tmp_path).num_train == 13


@pytest.mark.parametrize(
    ("arrays", "labels", "message"),
    [
        ([colour(), colour()], [0, None], "Column 'label' of .* has rows without a value"),
        ([colour(), colour()], [0, 10], r"'cifar10_jpeg' must be in 0\.\.9, got '0\.\.10'"),
        ([], pa.array([], pa.int64()), r"train\.parquet has no rows"),
    ],
)
def test_bad_rows(tmp_path, arrays, labels, message):
    write_parquet(tmp_path / "train.parquet", arrays, labels)
    with pytest.raises(InputError, match=message):
        load_dataset("cifar10_jpeg", tmp_path)


def test_rows_below_zero(tmp_path):
    path = tmp_path / "train.parquet"
    write_parquet(path, [colour()] * 61, [0] * 61)
    head, mark, tail = path.read_bytes().partition(b"\x16\x7a\x19")  # 61, as a varint
    assert mark
    path.write_bytes(head + b"\x16\x79\x19" + tail)  # -61
    with pytest.raises(InputError, match="it announces -61 rows"):
        load_dataset("parquet", tmp_path)


def test_columns_whose_names_read_like_numbers(tmp_path):
    write_parquet(tmp_path / "train.parquet", [colour()] * 2, [0, 1], "0", "1.50")
    data = load_dataset(f"parquet:{tmp_path}", image_column="0", label_column="1.50")
    assert data.num_classes == 2
    with pytest.raises(InputError, match=r"num_classes must be a whole number in .*, got 0"):
        load_dataset(f"parquet:{tmp_path}", image_column="0", label_column="1.50", num_classes=0)
    assert DATASETS["parquet"].text_options == [
        "image_size", "image_column", "label_column", "id_columns",
    ]  # fmt: skip
    assert DATASETS["digits"].text_options == []
    options = ("image_column=0", "label_column=1.50", "image_size=4")
    words = [f"--data_option={option}" for option in options]
    args = flags.parse(["run", "--dataset=parquet", f"--data_dir={tmp_path}", *words])
    assert data_flags.load_dataset(args).input_shape == (4, 4, 3)


def test_bad_parquet_files(tmp_path):
    with pytest.raises(InputError, match="Data set 'cifar10_jpeg' was not found"):
        load_dataset("cifar10_jpeg", tmp_path)
    with pytest.raises(InputError, match=r"holds no \.parquet files"):
        load_dataset("parquet", tmp_path)
    path = tmp_path / "test.parquet"
    write_parquet(path, [colour((40, 40))] * 3, [0, 1, 2])
    good = path.read_bytes()
    for damaged in (b"", b"PAR1", good[:-9], good[:9] + b"\xff" * 400 + good[409:]):
        (tmp_path / "train.parquet").write_bytes(damaged)
        with pytest.raises(InputError, match=r"train\.parquet"):
            load_dataset("parquet", tmp_path)


@pytest.mark.parametrize("name", ["image", "label"])
def test_two_columns_of_one_name(tmp_path, name):
    columns = {"image": pa.array([png(colour())] * 2), "label": pa.array([0, 1])}
    table = pa.table(columns).append_column(name, columns[name])
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(InputError, match=f"has 2 columns called '{name}': rename all but one"):
        load_dataset("parquet", tmp_path)
