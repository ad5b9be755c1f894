"""Parquet files, fully validated because damaged offsets would crash the process."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.files import reading, require_file, unreadable
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError

_KIND = "a Parquet file"


def open_parquet(path: Path) -> Any:
    """Return a `pyarrow.parquet.ParquetFile` whose columns are not decoded yet."""
    import pyarrow.parquet  # slow import: only where it is used

    require_file(path)
    with reading(path, _KIND):
        file = pyarrow.parquet.ParquetFile(path)
        list(file.schema_arrow.names)  # raises if a name isn't UTF-8
    if file.metadata.num_rows < 0:
        raise unreadable(path, _KIND, f"it announces {file.metadata.num_rows} rows")
    return file


def row_groups(path: Path, columns: Sequence[str]) -> Iterator:
    """Yield the groups of rows of a Parquet file as Arrow tables of some columns.

    Texts and bytes stay in dictionaries: a few bytes of a file may stand for megabytes in each row.

    Raises:
      InputError: damaged, larger than memory, or other than the announced number of rows.
    """
    import pyarrow.parquet as pq  # slow import: only where it is used

    file, done = open_parquet(path), 0
    meta, leaves = file.metadata, map(file.schema.column, range(len(file.schema)))
    words = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"
             and leaf.converted_type in ("NONE", "UTF8")]  # fmt: skip
    with reading(path, _KIND):
        file = pq.ParquetFile(path, read_dictionary=words, pre_buffer=False)
        for k in range(meta.num_row_groups):
            # Metadata of single columns of a damaged file would abort the process.
            require_memory(f"A group of rows of {path}", meta.row_group(k).total_byte_size)
            table = file.read_row_group(k, list(columns))
            table.validate(full=True)
            done += len(table)
            yield table
        if done != meta.num_rows:
            why = f"it announces {meta.num_rows} rows, but {done} are there"
            raise unreadable(path, _KIND, why)


def integers(path: Path, table: Any, name: str) -> np.ndarray:
    """Return a column of integers of an Arrow table [rows]."""
    from pyarrow import types  # slow import: only where it is used

    column, kind = table[name], table[name].type
    if not types.is_integer(kind):
        kind = kind.value_type if types.is_dictionary(kind) else kind
        raise InputError(f"Column {name!r} of {path} must hold integers, got {kind}.")
    if column.null_count:
        raise InputError(f"Column {name!r} of {path} has rows without a value.")
    return column.to_numpy()


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
