"""Arrow and Parquet files with wrong offsets, sizes, rows or names."""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedjax_pfl.data import parquet_files
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import black, parquet
from tests.data.partitions.pools import toy

POOL = toy(4, classes=2)


def stream(folder, batch, compression=None):
    """Writes an Arrow stream as a partition of flwr-datasets."""
    (folder / "partition_0").mkdir(exist_ok=True)
    path = folder / "partition_0" / "a.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_stream(file, batch.schema, options=options) as writer,
    ):
        writer.write_batch(batch)
    return path


def test_offsets_beyond_the_end_of_an_arrow_file(tmp_path):
    images = pa.array([{"bytes": black((4, 4 + i)), "path": None} for i in range(3)])
    batch = pa.record_batch({"img": images, "label": pa.array([0, 1, 0])})
    path = stream(tmp_path, batch)
    offsets = batch["img"].field("bytes").buffers()[1].to_pybytes()[: 4 * (len(batch) + 1)]
    content = path.read_bytes()
    assert content.count(offsets) == 1
    bad = offsets[:4] + struct.pack("<i", 2_000_000_000) + offsets[8:]
    path.write_bytes(content.replace(offsets, bad))
    data = dataset_from_arrays("toy", np.zeros((4, 4, 4, 3), np.uint8), np.arange(4) % 2)
    with pytest.raises(InputError, match=r"a\.arrow can't be read as an Arrow stream: "):
        import_partition("flower", tmp_path, data)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("words", [True, False])
def test_compressed_arrow_streams_are_refused(tmp_path, compression, words):
    columns = {"index": np.arange(4)}
    columns |= {"words": pa.array(["a", "b"] * 2).dictionary_encode()} if words else {}
    batch = pa.record_batch(columns)
    stream(tmp_path, batch)
    assert import_partition("flower", tmp_path, POOL, test_fraction=0).sizes().tolist() == [4]
    stream(tmp_path, batch, compression)
    with pytest.raises(InputError, match=r"a\.arrow is a compressed Arrow stream: save it uncom"):
        import_partition("flower", tmp_path, POOL)


def test_names_of_columns_that_are_not_text(tmp_path):
    path = stream(tmp_path, pa.record_batch({"index": [0], "other": [1]}))
    content = path.read_bytes()
    for name in (b"index", b"other"):
        path.write_bytes(content.replace(name, b"\xee" + name[1:]))
        with pytest.raises(InputError, match=r"can't be read as an Arrow stream: 'utf-8' codec"):
            import_partition("flower", tmp_path, POOL)


def test_more_rows_than_samples_are_not_read(tmp_path):
    pq.write_table(pa.table({"index": np.zeros(5, np.int64)}), tmp_path / "partition_0.parquet")
    with pytest.raises(InputError, match="has more rows than the 4 samples of the data set"):
        import_partition("flower", tmp_path, POOL)


@pytest.mark.costly
def test_one_large_value_in_many_rows_is_read_in_small_pieces(tmp_path, monkeypatch):
    value = black((4, 4)) + b"\0" * 2**18  # what follows an image is ignored
    parquet(tmp_path, labels=[0, 1] * 20, images=[value] * 40)
    assert (tmp_path / "train.parquet").stat().st_size < 100_000
    pool = pa.default_memory_pool()
    seen, decode = [], parquet_files.batches

    def watched(*arguments):
        for batch in decode(*arguments):
            seen.append(pool.bytes_allocated())
            yield batch

    monkeypatch.setattr(arrow_files, "_ROWS", 4)
    monkeypatch.setattr("fedjax_pfl.data.sources.parquet.batches", watched)
    before = pool.bytes_allocated()
    assert load_dataset("parquet", tmp_path).num_train == 40
    assert len(seen) == 10 and max(seen) - before < 2**22  # all at once: 10 MB and more


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

    class Meta:
        num_rows, num_row_groups = 2, 1

        def row_group(self, i):
            return Group()

    class File(pq.ParquetFile):
        metadata = Meta()

    parquet(tmp_path)
    monkeypatch.setattr(pq, "ParquetFile", File)
    assert load_dataset("parquet", tmp_path).num_train == 2
