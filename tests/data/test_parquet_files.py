"""Parquet files with wrong sizes, rows or names."""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedjax_pfl.data import parquet_files
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import black, parquet
from tests.data.partitions.pools import toy

POOL = toy(4, classes=2)


def test_names_of_columns_that_are_not_text(tmp_path):
    path = tmp_path / "partition_0.parquet"
    pq.write_table(pa.table({"index": [0], "other": [1]}), path, store_schema=False)
    content = path.read_bytes()
    for name in (b"index", b"other"):
        path.write_bytes(content.replace(name, b"\xee" + name[1:]))
        with pytest.raises(InputError, match=r"can't be read as a Parquet file: 'utf-8' codec"):
            import_partition("flower", tmp_path, POOL)


def test_folders_of_arrow_files_are_refused(tmp_path):
    (tmp_path / "partition_0").mkdir()
    with pytest.raises(InputError, match=r"partition_0 holds no \.parquet file\.$"):
        import_partition("flower", tmp_path, POOL)
    (tmp_path / "partition_0" / "data-00000-of-00001.arrow").write_bytes(b"")
    with pytest.raises(InputError, match=r"file: save partitions with to_parquet, not with save"):
        import_partition("flower", tmp_path, POOL)


def test_more_rows_than_samples_are_not_read(tmp_path):
    pq.write_table(pa.table({"index": np.zeros(5, np.int64)}), tmp_path / "partition_0.parquet")
    with pytest.raises(InputError, match="has more rows than the 4 samples of the data set"):
        import_partition("flower", tmp_path, POOL)


def test_one_large_value_in_many_rows_is_read_once(tmp_path):
    value = black((4, 4)) + b"\0" * 2**18  # what follows an image is ignored
    parquet(tmp_path, labels=[0, 1] * 20, images=[value] * 40)
    assert (tmp_path / "train.parquet").stat().st_size < 100_000
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    (table,) = parquet_files.row_groups(tmp_path / "train.parquet", ["image", "label"])
    assert len(table) == 40 and pool.bytes_allocated() - before < 2**22  # in each row: 10 MB
    assert [*parquet_files.image_bytes(table["image"])] == [value] * 40
    assert load_dataset("parquet", tmp_path).num_train == 40


def test_rows_that_a_parquet_file_lacks(tmp_path):
    parquet(tmp_path, labels=[0, 1, 0])
    content = (tmp_path / "train.parquet").read_bytes()
    size = struct.unpack("<I", content[-8:-4])[0]
    foot = bytearray(content[-8 - size : -8])
    # Thrift's compact form: a field of 64 bits (6) after the schema has the rows, zigzagged.
    rows = [i for i in range(len(foot) - 1) if foot[i : i + 2] == b"\x16\x06"]
    seen = set()
    for places in [*([i] for i in rows), rows]:
        changed = foot[:]
        for i in places:
            changed[i + 1] = 8  # 4 rows
        (tmp_path / "train.parquet").write_bytes(content[: -8 - size] + changed + content[-8:])
        meta = pq.ParquetFile(tmp_path / "train.parquet").metadata
        if (meta.num_rows, meta.row_group(0).num_rows) != (3, 3):
            seen.add((meta.num_rows, meta.row_group(0).num_rows))
            if meta.num_rows == 3:  # the rows that are there
                assert load_dataset("parquet", tmp_path).num_train == 3
                continue
            with pytest.raises(InputError, match=r"train\.parquet can't be read as a Parquet file"):
                load_dataset("parquet", tmp_path)
    assert seen == {(4, 3), (3, 4), (4, 4)}


def test_statistics_that_abort_pyarrow_are_not_read(tmp_path, monkeypatch):
    """`ColumnChunkMetaData` ends the process if the sizes of its levels don't match."""

    class Group:
        num_rows, total_byte_size = 2, 100

        def column(self, k):
            raise AssertionError("this may abort the process")

    parquet(tmp_path)

    class Meta:
        num_rows, num_row_groups = 2, 1
        schema = pq.ParquetFile(tmp_path / "train.parquet").schema

        def row_group(self, i):
            return Group()

    class File(pq.ParquetFile):
        metadata = Meta()

    monkeypatch.setattr(pq, "ParquetFile", File)
    assert load_dataset("parquet", tmp_path).num_train == 2
