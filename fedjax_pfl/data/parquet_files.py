"""Parquet and Arrow files, fully validated because damaged offsets would crash the process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.files import read_bytes, reading, require_file, unreadable
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError

# Rows that are decoded at once: a few bytes of a file may stand for a value of megabytes in each.
_ROWS = 64
_PARQUET, _STREAM = "a Parquet file", "an Arrow stream"


def open_parquet(path: Path) -> Any:
    """Return a `pyarrow.parquet.ParquetFile` whose columns are not decoded yet."""
    import pyarrow.parquet  # slow import: only where it is used

    require_file(path)
    with reading(path, _PARQUET):
        file = pyarrow.parquet.ParquetFile(path)
        list(file.schema_arrow.names)  # raises if a name isn't UTF-8
    if file.metadata.num_rows < 0:
        raise unreadable(path, _PARQUET, f"it announces {file.metadata.num_rows} rows")
    return file


def batches(path: Path, file: Any, columns: list[str] | None = None) -> Iterator:
    """Yield record batches of some or all columns of an opened Parquet file, a few rows each.

    Raises:
      InputError: damaged, larger than memory, or other than the announced number of rows.
    """
    done, meta = 0, file.metadata
    with reading(path, _PARQUET):
        # Of columns one by one, a damaged file's metadata would abort the process.
        groups = map(meta.row_group, range(meta.num_row_groups))
        largest = max((group.total_byte_size for group in groups), default=0)
        require_memory(f"A group of rows of {path}", largest)
        for batch in file.iter_batches(_ROWS, columns=columns):
            batch.validate(full=True)
            done += len(batch)
            if done > meta.num_rows:
                break
            yield batch
        if done != meta.num_rows:
            why = f"it announces {meta.num_rows} rows, but {done} or more are there"
            raise unreadable(path, _PARQUET, why)


def _values(path: Path, batch, name: str) -> np.ndarray:
    column = batch.column(name)
    if column.null_count:
        raise InputError(f"Column {name!r} of {path} has rows without a value.")
    return column.to_numpy(zero_copy_only=False)


def integers(path: Path, batch: Any, name: str) -> np.ndarray:
    """Return a column of integers of a record batch [rows]."""
    from pyarrow import types  # slow import: only where it is used

    kind = batch.schema.field(name).type
    if not types.is_integer(kind):
        raise InputError(f"Column {name!r} of {path} must hold integers, got {kind}.")
    return _values(path, batch, name)


def holds_images(kind: Any) -> bool:
    """Return whether a type is that of encoded images: bytes, or structs with a field `bytes`."""
    from pyarrow import types  # slow import: only where it is used

    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return types.is_binary(kind) or types.is_large_binary(kind)


def image_bytes(column: Any) -> Iterator[bytes]:
    """Yield the encoded images of a column, b"" where there is none."""
    for value in column:
        value = value.as_py()
        yield (value["bytes"] if isinstance(value, dict) else value) or b""


def stream_batches(path: Path) -> Iterator:
    """Yield the record batches of an Arrow stream, as `datasets` saves it.

    Raises:
      InputError: damaged, or compressed, so that it might unpack to more than memory holds.
    """
    import pyarrow as pa  # slow import: only where it is used

    content = read_bytes(path)
    with reading(path, _STREAM):
        for message in pa.ipc.MessageReader.open_stream(content):
            if _is_compressed(message):
                raise InputError(f"{path} is a compressed Arrow stream: save it uncompressed.")
        with pa.ipc.open_stream(content) as reader:
            list(reader.schema.names)  # raises if a name isn't UTF-8
            for batch in reader:
                batch.validate(full=True)
                yield batch


def _is_compressed(message) -> bool:
    """Return whether a record batch is compressed, from its FlatBuffer message."""
    head = message.metadata.to_pybytes()

    def number(size: int, place: int) -> int:
        return int.from_bytes(head[place : place + size], "little")

    def field(table: int, index: int) -> int:
        """Return the position of a field of a table, or 0 if it is omitted."""
        vtable = table - int.from_bytes(head[table : table + 4], "little", signed=True)
        entry = 4 + 2 * index
        offset = number(2, vtable + entry) if entry < number(2, vtable) else 0
        return table + offset if offset else 0

    root = number(4, 0)
    if message.type not in ("record batch", "dictionary"):
        return False
    place = field(root, 2)
    batch = place + number(4, place)
    if message.type == "dictionary":
        place = field(batch, 1)
        batch = place + number(4, place)
    return field(batch, 3) > 0
