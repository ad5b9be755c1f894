"""Splits of other tools: found again in the pool, or refused with a sentence."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import png
from tests.data.partitions.saved_splits import (
    DATA,
    EXPECTED,
    TEST,
    TRAIN,
    colour_set,
    images,
    lists_of,
    write_pfllib,
)


def test_pfllib_other_normalization(tmp_path):
    write_pfllib(tmp_path, DATA, ".plain.npz", mean=0.1307, std=0.3081)
    with pytest.raises(InputError, match=r"train samples of client 0 in .* aren't pixels: 255"):
        import_partition("pfllib", tmp_path, DATA)
    p = import_partition("pfllib", tmp_path, DATA, mean=0.1307, std=0.3081)
    assert lists_of(p) == EXPECTED


def test_equal_samples_are_taken_in_order_and_counted(tmp_path):
    dataset = colour_set(duplicates=True)
    write_pfllib(tmp_path, dataset, ".plain.npz")
    p = import_partition("pfllib", tmp_path, dataset)
    # Samples 3 and 7 are equal: one choice. Samples 2 and 9 differ by their labels.
    assert lists_of(p) == EXPECTED
    assert p.options["ambiguous_samples"] == 1


def test_pfllib_of_other_data(tmp_path):
    write_pfllib(tmp_path, DATA, ".plain.npz")
    other = dataset_from_arrays("other", images(50, 1), np.arange(50) % 4)
    with pytest.raises(
        InputError, match=r"4 of 4 train samples of client 0 .* not in data set 'ot"
    ):
        import_partition("pfllib", tmp_path, other)
    small = dataset_from_arrays("small", images(50, 1, (4, 4, 3)), np.arange(50) % 4)
    with pytest.raises(InputError, match=r"Shape of the train samples .* must be \(4, 4, 3\), got"):
        import_partition("pfllib", tmp_path, small)


def test_pfllib_incomplete_or_inconsistent(tmp_path):
    with pytest.raises(InputError, match=r"No file .*config\.json"):
        import_partition("pfllib", tmp_path, DATA)
    write_pfllib(tmp_path, DATA, ".plain.npz")
    config = json.loads((tmp_path / "config.json").read_text())
    config["Size of samples for labels in clients"][1] = [[0, 99]]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"Client 1 has other class counts than in .*config"):
        import_partition("pfllib", tmp_path, DATA)
    (tmp_path / "config.json").write_text('{"num_clients": 4}')
    with pytest.raises(InputError, match=r"No file .*3\.plain\.npz, though config\.json counts on"):
        import_partition("pfllib", tmp_path, DATA)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="can't be read as JSON"):
        import_partition("pfllib", tmp_path, DATA)


@pytest.mark.parametrize(
    "noted",
    ["no list", [[[0, 1]]], [[[0, 1]], 3, []], [[[0]], [], []], [[[0, "1"]], [], []], {"0": 1}],
)
def test_pfllib_with_odd_rows_in_its_config(tmp_path, noted):
    write_pfllib(tmp_path, DATA, ".plain.npz")
    config = {"num_clients": 3, "Size of samples for labels in clients": noted}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"in config\.json must be a list of 3 lists, one"):
        import_partition("pfllib", tmp_path, DATA)


def test_pfllib_splits_of_texts_are_refused(tmp_path):
    texts = dataset_from_arrays("t", np.ones((4, 3), np.int32), [0, 1, 0, 1], vocab_size=9)
    with pytest.raises(InputError, match=r"splits of texts can't be read.* of data set 't'"):
        import_partition("pfllib", tmp_path, texts)


def test_pfllib_grey_images_and_float_features(tmp_path):
    grey = dataset_from_arrays("grey", images(50, 2, (6, 5)), np.arange(50) % 4)
    write_pfllib(tmp_path / "grey", grey, ".plain.npz")
    assert lists_of(import_partition("pfllib", tmp_path / "grey", grey)) == EXPECTED
    features = dataset_from_arrays("f", np.random.default_rng(0).normal(size=(50, 4)), [0, 1] * 25)
    folder = tmp_path / "features"
    write_pfllib(folder, features, ".plain.npz", noted=False)
    assert lists_of(import_partition("pfllib", folder, features)) == EXPECTED


def test_flower_json_of_training_indices(tmp_path):
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"0": list(range(10)), "1": [30, 12], "2": []}))
    p = import_partition("flower", path, DATA, test_fraction=0.5)
    assert p.sizes().tolist() == [5, 1, 0]
    assert sorted([*p.client("train", 0), *p.client("test", 0)]) == list(range(10))
    assert p.hash() == import_partition("flower", path, DATA, test_fraction=0.5).hash()
    assert p.hash() != import_partition("flower", path, DATA, test_fraction=0.5, seed=1).hash()
    assert p.options["test_fraction"] == 0.5


def test_flower_json_of_both_splits(tmp_path):
    path = tmp_path / "split.json"
    content = {"train": {"1": [3, 2], "0": [7]}, "test": {"0": [0, 9], "1": [9]}}
    path.write_text(json.dumps(content))
    p = import_partition("flower", path, DATA)
    assert lists_of(p) == [[[7], [2, 3]], [[40, 49], [49]]]
    assert p.overlaps() == (1, 0)
    assert "test_fraction" not in p.options


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "must be an object with the indices of each partition, got {}"),
        ({"0": [1], "2": [2]}, r"must be numbered 0, 1, 2, \.\.\., got \['0', '2'\]"),
        ({"0": [40]}, r"Partition 0 in .* must be a list of integers 0\.\.39"),
        ({"0": [1.5]}, "must be a list of integers"),
        ({"0": [True]}, "must be a list of integers"),
        ({"0": 5}, "must be a list of integers"),
        ({"0": [1, 1]}, "Sample 1 is listed twice"),
        (
            {"train": {"0": [1]}, "test": {"0": [1], "1": [2]}},
            "Test partitions in .* must be 1, go",
        ),
        (
            {"train": {"0": [1, 2]}, "val": {"0": [2]}},
            "Splits of partition 0 .* got '1 samples in two",
        ),
        (
            {"train": {"0": [1]}, "val": {"0": [2]}, "valid": {"0": [3]}},
            "Split 'validation' in .* must be there once, got .*'valid', too",
        ),
    ],
)
def test_flower_json_refusals(tmp_path, content, message):
    path = tmp_path / "split.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        import_partition("flower", path, DATA, test_fraction=0)


def encoded(image):
    return {"bytes": png(image), "path": None}


def test_flower_folders_of_images(tmp_path):
    x, y = DATA.pool()
    for client, idx in enumerate(TRAIN):
        rows = {"img": [encoded(x[i]) for i in idx], "label": [int(y[i]) for i in idx]}
        pq.write_table(pa.table(rows), tmp_path / f"partition_{client}.parquet")
    p = import_partition("flower", tmp_path, DATA, test_fraction=0)
    assert lists_of(p)[0] == EXPECTED[0]
    bad = {"img": [encoded(255 - x[0])], "label": [0]}
    pq.write_table(pa.table(bad), tmp_path / "partition_3.parquet")
    with pytest.raises(InputError, match=r"1 of 1 images of .*partition_3\.parq.* not in data set"):
        import_partition("flower", tmp_path, DATA)


def test_flower_folders_of_indices(tmp_path):
    for client, (train, test) in enumerate(zip(TRAIN, TEST, strict=True)):
        for split, idx in (("train", train), ("test", test)):
            folder = tmp_path / f"partition_{client}" / split
            folder.mkdir(parents=True)
            table = pa.table({"index": pa.array(idx, pa.int64()), "label": [0] * len(idx)})
            pq.write_table(table, folder / "part.parquet")
    assert lists_of(import_partition("flower", tmp_path, DATA)) == EXPECTED
    pq.write_table(pa.table({"index": TRAIN[0][:2]}), tmp_path / "partition_0/test/part.parquet")
    with pytest.raises(InputError, match=r"Splits of partition 0 in .*, got '2 samples in"):
        import_partition("flower", tmp_path, DATA)
    for name in ("val", "valid"):
        (tmp_path / "partition_0" / name).mkdir()
    with pytest.raises(InputError, match=r"Splits in .*partition_0 must be there once each"):
        import_partition("flower", tmp_path, DATA)


def test_flower_parquet_files_and_their_faults(tmp_path):
    for client, idx in enumerate(TRAIN):
        pq.write_table(pa.table({"row": idx}), tmp_path / f"client-{client}.parquet")
    p = import_partition("flower", tmp_path, DATA, test_fraction=0, index_column="row")
    assert lists_of(p)[0] == EXPECTED[0]
    with pytest.raises(InputError, match=r"neither a column 'index' .* columns found: row"):
        import_partition("flower", tmp_path, DATA)
    pq.write_table(pa.table({"row": [50]}), tmp_path / "client-1.parquet")
    with pytest.raises(InputError, match=r"Column 'row' of .* must be in 0\.\.49"):
        import_partition("flower", tmp_path, DATA, index_column="row")
    (tmp_path / "client-1.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(InputError, match="can't be read as a Parquet file"):
        import_partition("flower", tmp_path, DATA, index_column="row")
    (tmp_path / "client-1.parquet").unlink()
    with pytest.raises(InputError, match=r"must be files or folders whose names end in 0, 1, 2"):
        import_partition("flower", tmp_path, DATA)
    bad = pa.table({"image": [{"bytes": b"no image", "path": None}], "label": [0]})
    pq.write_table(bad, tmp_path / "client-0.parquet")
    (tmp_path / "client-2.parquet").unlink()
    with pytest.raises(InputError, match="can't be read as an image"):
        import_partition("flower", tmp_path, DATA)


def test_unknown_source():
    with pytest.raises(
        InputError, match=r"Unknown source of saved splits 'pfl'\. Did you mean 'pfll"
    ):
        import_partition("pfl", "x", DATA)


def test_pfllib_samples_of_another_type(tmp_path):
    write_pfllib(tmp_path, DATA, ".plain.npz")
    path = tmp_path / "train" / "0.plain.npz"
    with np.load(path) as arrays:
        x, y = arrays["x"], arrays["y"]
    np.savez(path, x=x.astype(str), y=y)
    with pytest.raises(InputError, match=r"Type of the train samples of client 0 .* numbers"):
        import_partition("pfllib", tmp_path, DATA)


def test_json_of_brackets_without_end(tmp_path):
    path = tmp_path / "split.json"
    path.write_text("[" * 200_000)
    with pytest.raises(InputError, match=r"split\.json can't be read as JSON"):
        import_partition("flower", path, DATA)
