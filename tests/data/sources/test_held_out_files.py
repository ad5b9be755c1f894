"""Files, folders and arrays of held-out samples are used in every reader, or named in its note."""

import json

import numpy as np
import pandas as pd
import pytest

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.data.sources.splits import TEST, TRAIN, VALIDATION, split_of
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import colour, write_parquet

TABLE = pd.DataFrame({"a": [1.0, 2.0, 3.0], "label": [0, 1, 0]})
HELD_OUT = ["test", "Test", "TEST", "val", "valid", "validation", "dev", "eval", "held_out"]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("train-00000-of-00001", TRAIN), ("Training", TRAIN), ("adult.test", TEST),
        ("my_val", VALIDATION), ("held_out", VALIDATION), ("train_test", None), ("data", None),
        ("constraint", None),
    ],
)  # fmt: skip
def test_split_of_a_name(name, group):
    assert split_of(name) == group


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("test", HELD_OUT)
def test_held_out_tables(tmp_path, ending, test):
    TABLE.to_csv(tmp_path / "train.csv", index=False)
    write = {"csv": TABLE[:1].to_csv, "parquet": TABLE[:1].to_parquet}[ending]
    write(tmp_path / f"{test}.{ending}", index=False)
    data = load_dataset("table", tmp_path)
    assert (data.num_train, data.num_test, data.note) == (3, 1, "")


def test_tables_that_are_not_used_are_named(tmp_path):
    for name in ("train", "test", "validation", "more"):
        TABLE.to_csv(tmp_path / f"{name}.csv", index=False)
    TABLE.to_parquet(tmp_path / "train.parquet")
    data = load_dataset("table", tmp_path)
    assert data.note == "not used: train.parquet, more.csv, validation.csv"
    alone = load_dataset("table", tmp_path / "train.csv")
    assert (alone.num_test, alone.note) == (0, "not used: test.csv, validation.csv")


def test_files_beside_those_of_ag_news_and_of_parquet_are_named(tmp_path):
    texts = "".join(f"{k},a,b\n" for k in (1, 2, 3, 4))
    for name in ("train.csv", "test.csv", "val.csv"):
        (tmp_path / name).write_text(texts)
    assert load_dataset("ag_news", tmp_path).note.endswith("; not used: val.csv")
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "train.parquet", [colour()], [0])
    write_parquet(tmp_path / "data" / "test.parquet", [colour()], [0])
    assert load_dataset("parquet", tmp_path).note == "not used: data/test.parquet"


def test_a_nameless_column_of_texts_is_named(tmp_path):
    (tmp_path / "train.csv").write_text(",label,words\n0,x,a b\n1,y,c\n")
    assert load_dataset("text_csv", tmp_path).note == "without the nameless column ''"


@pytest.mark.parametrize(("dataset", "test"), [("table", "test.csv.gz"), ("text_csv", "test.tsv")])
def test_held_out_files_of_another_type_are_named(tmp_path, dataset, test):
    (tmp_path / "train.csv").write_text("label,a\n0,1\n1,2\n")
    (tmp_path / test).write_bytes(b"")
    for path in (tmp_path, tmp_path / "train.csv"):
        assert load_dataset(dataset, path).note == f"not used: {test}"


@pytest.mark.parametrize("test", HELD_OUT)
def test_held_out_texts(tmp_path, test):
    (tmp_path / "train.csv").write_text("0,a b\n1,b c\n")
    (tmp_path / f"{test}.csv").write_text("1,b\n")
    (tmp_path / "extra.csv").write_text("1,b\n")
    data = load_dataset("text_csv", tmp_path)
    assert (data.num_train, data.num_test, data.note) == (2, 1, "not used: extra.csv")


@pytest.mark.parametrize("test", ["test-0.parquet", "validation-0.parquet", "val.PARQUET"])
def test_held_out_parquet_files_of_images(tmp_path, test):
    write_parquet(tmp_path / "train-00000-of-00001.parquet", [colour()] * 2, [0, 1])
    write_parquet(tmp_path / test, [colour()], [1])
    write_parquet(tmp_path / "unsupervised-00000-of-00001.parquet", [colour()], [1])
    data = load_dataset("parquet", tmp_path)
    assert (data.num_train, data.num_test) == (2, 1)
    assert data.note == "not used: unsupervised-00000-of-00001.parquet"


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_val", "y_val"), ("X_train", "y_train", "X_test", "y_test"),
        ("train_x", "train_y", "valid_x", "valid_y"), ("trainX", "trainY", "testX", "testY"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("xtrain", "ytrain", "xtest", "ytest"),
    ],
)  # fmt: skip
def test_held_out_arrays(tmp_path, names):
    arrays = [np.zeros((3, 2)), np.array([0, 1, 0]), np.ones((1, 2)), np.array([1])]
    np.savez(tmp_path / "a.npz", **dict(zip(names, arrays, strict=True)), spare=np.zeros(2))
    data = load_dataset("npz", tmp_path / "a.npz")
    assert (data.num_train, data.test_x.tolist(), data.test_y.tolist()) == (3, [[1, 1]], [1])
    assert data.note == "not used: spare"


def test_arrays_that_are_not_used_or_meant_twice(tmp_path):
    arrays = {"x_train": np.zeros((3, 2)), "y_train": [0, 1, 0]}
    held = {f"{letter}_{split}": arrays[f"{letter}_train"]
            for letter in "xy" for split in ("test", "val")}  # fmt: skip
    np.savez(tmp_path / "a.npz", **arrays, **held)
    assert load_dataset("npz", tmp_path / "a.npz").note == "not used: x_val, y_val"
    np.savez(tmp_path / "a.npz", **arrays, X_train=np.zeros((3, 2)))
    with pytest.raises(InputError, match="several arrays for x_train: x_train, X_train"):
        load_dataset("npz", tmp_path / "a.npz")


def test_leafs_folders_that_are_not_used_are_named(tmp_path):
    user = {"users": ["u"], "user_data": {"u": {"x": [[0.5]], "y": [0]}}}
    for split in ("train", "test", "valid"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.json").write_text(json.dumps(user))
    assert load_dataset("leaf", tmp_path).note == "not used: valid"


POOL = dataset_from_arrays("a", np.zeros((6, 1)), [0, 1, 0, 1, 0, 1], np.zeros((2, 1)), [0, 1])


@pytest.mark.parametrize("name", ["validation", "valid", "val"])
def test_flowers_validation_samples(tmp_path, name):
    content = {
        "train": {"0": [0], "1": [1]},
        "test": {"0": [0], "1": [1]},
        name: {"0": [2], "1": [3]},
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    partition = import_partition("flower", tmp_path / "a.json", POOL)
    for k in range(2):
        for split, index in (("train", k), ("test", 6 + k), ("validation", 2 + k)):
            assert partition.client(split, k).tolist() == [index]
            place = tmp_path / f"p/partition_{k}" / (name if split == "validation" else split)
            place.mkdir(parents=True)
            pd.DataFrame({"index": [index]}).to_parquet(place / "a.parquet")
    assert import_partition("flower", tmp_path / "p", POOL).hash() == partition.hash()
    (tmp_path / "p/partition_0" / name).rename(tmp_path / "p/partition_0/extra")
    with pytest.raises(InputError, match=r"Unknown split in .*partition_0: 'extra'"):
        import_partition("flower", tmp_path / "p", POOL)
    (tmp_path / "a.json").write_text(json.dumps(content | {"tset": {}}))
    with pytest.raises(InputError, match=r"Unknown split in .*: 'tset'. Did you mean 'test'"):
        import_partition("flower", tmp_path / "a.json", POOL)


def test_pfllibs_clients_beyond_the_number_in_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"num_clients": 1}))
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        for client in range(2):
            arrays = {"x": np.zeros((2, 1), np.float32), "y": np.array([0, 1])}
            np.savez(tmp_path / split / f"{client}.plain.npz", **arrays)
    with pytest.raises(InputError, match=r"has a file of client 1, though config\.json counts 1"):
        load_dataset("pfllib", tmp_path)
