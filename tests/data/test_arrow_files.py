"""Arrow and Parquet files that lie about offsets, sizes, rows or names."""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedjax_pfl.data import arrow_files
from fedjax_pfl.data.arrow_sizes import unpacked_size
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.sources.test_bad_files import parquet, png
from tests.data.sources.test_source_registry import _nothing_of_this_machine  # noqa: F401
from tests.data.test_hostile_files import POOL


def spoiled(table, path):
    """An Arrow stream whose column of images has an offset of two thousand million."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    offsets = table["img"].chunk(0).field("bytes").buffers()[1].to_pybytes()
    offsets = offsets[: 4 * (len(table) + 1)]
    assert content.count(offsets) == 1
    bad = offsets[:4] + struct.pack("<i", 2_000_000_000) + offsets[8:]
    path.write_bytes(content.replace(offsets, bad))


def test_offsets_beyond_an_arrow_file(tmp_path):
    folder = tmp_path / "partition_0"
    folder.mkdir()
    images = pa.array([{"bytes": png((4, 4 + i)), "path": None} for i in range(3)])
    spoiled(pa.table({"img": images, "label": [0, 1, 0]}), folder / "data.arrow")
    data = dataset_from_arrays("toy", np.zeros((4, 4, 4, 3), np.uint8), np.arange(4) % 2)
    with pytest.raises(InputError, match=r"data\.arrow can't be read as an Arrow stream: "):
        import_partition("flower", tmp_path, data)


def stream(batch, compression):
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_arrow_files_say_their_size(tmp_path, compression, little_memory):
    words = pa.array(["a", "b"] * 50_000).dictionary_encode()
    batch = pa.record_batch({"index": np.zeros(100_000, np.int64), "words": words})
    content = stream(batch, compression)
    assert len(content) < 20_000 and unpacked_size(stream(batch, None)) == 0
    assert batch.nbytes <= unpacked_size(content) <= batch.nbytes + 200
    (tmp_path / "partition_0").mkdir()
    (tmp_path / "partition_0" / "a.arrow").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.arrow unpacked would take 1\.2 MB of memory, but"):
        import_partition("flower", tmp_path, POOL)


def test_names_of_columns_that_are_no_text(tmp_path):
    (tmp_path / "partition_0").mkdir()
    content = stream(pa.record_batch({"index": [0], "other": [1]}), None)
    for name in (b"index", b"other"):
        (tmp_path / "partition_0" / "a.arrow").write_bytes(
            content.replace(name, b"\xee" + name[1:])
        )
        with pytest.raises(InputError, match=r"can't be read as an Arrow stream: 'utf-8' codec"):
            import_partition("flower", tmp_path, POOL)


def test_more_rows_than_samples_are_not_read(tmp_path):
    pq.write_table(pa.table({"index": np.zeros(5, np.int64)}), tmp_path / "partition_0.parquet")
    with pytest.raises(InputError, match="has more rows than the 4 samples of the data set"):
        import_partition("flower", tmp_path, POOL)


def test_one_large_value_in_many_rows_is_read_in_small_pieces(tmp_path, monkeypatch):
    value = png((4, 4)) + b"\0" * 2**20  # what follows an image is not looked at
    parquet(tmp_path, 40, labels=[0, 1] * 20, images=[value] * 40)
    assert (tmp_path / "train.parquet").stat().st_size < 100_000
    pool = pa.default_memory_pool()
    seen, decode = [], arrow_files.batches

    def watched(*arguments):
        for batch in decode(*arguments):
            seen.append(pool.bytes_allocated())
            yield batch

    monkeypatch.setattr("fedjax_pfl.data.sources.parquet.batches", watched)
    before = pool.bytes_allocated()
    assert load_dataset("parquet", tmp_path).num_train == 40
    assert len(seen) == 10 and max(seen) - before < 16 * 2**20  # all at once: 40 MB and more


def test_rows_that_a_parquet_file_lacks(tmp_path):
    parquet(tmp_path, 3, labels=[0, 1, 0])
    content = (tmp_path / "train.parquet").read_bytes()
    size = struct.unpack("<I", content[-8:-4])[0]
    foot = bytearray(content[-8 - size : -8])
    # Thrift's compact form: a field of 64 bits (6) after the schema says the rows, zigzagged.
    rows = [i for i in range(len(foot) - 1) if foot[i : i + 2] == b"\x16\x06"]
    told = set()
    for lies in [*([i] for i in rows), rows]:
        changed = foot[:]
        for i in lies:
            changed[i + 1] = 8  # 4 rows
        (tmp_path / "train.parquet").write_bytes(content[: -8 - size] + changed + content[-8:])
        meta = pq.ParquetFile(tmp_path / "train.parquet").metadata
        if (meta.num_rows, meta.row_group(0).num_rows) != (3, 3):
            told.add((meta.num_rows, meta.row_group(0).num_rows))
            with pytest.raises(InputError, match=r"train\.parquet can't be read as a Parquet file"):
                load_dataset("parquet", tmp_path)
    assert told == {(4, 3), (3, 4), (4, 4)}


def test_statistics_that_abort_pyarrow_are_not_asked_for(tmp_path, monkeypatch):
    """`ColumnChunkMetaData` ends the process where the sizes of its levels don't match."""

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
