"""Parquet and Arrow files, checked in full: damaged offsets would crash the process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedjax_pfl.data.arrow_sizes import unpacked_size
from fedjax_pfl.data.files import read_bytes, require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError

# Rows of encoded images that are read at once. A few bytes may stand for a value of megabytes, row
# after row, so larger pieces don't wait until their size is known.
_ROWS = 4
_LARGE = 2**26


def open_parquet(path: Path):
    """A `pyarrow.parquet.ParquetFile`, not decoded yet.

    Raises:
      InputError: no regular file, no Parquet file, or row groups that don't add up.
    """
    import pyarrow.parquet  # slow import: only where it is used

    require_file(path)
    with _readable(path):
        file = pyarrow.parquet.ParquetFile(path)
        _check_names(file.schema_arrow)
        meta = file.metadata
        groups = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        if min(groups, default=0) < 0 or sum(groups) != meta.num_rows:
            raise _unreadable(path, f"it announces {meta.num_rows} rows and holds {sum(groups)}")
    return file


def batches(path: Path, file, columns: list[str] | None = None) -> Iterator:
    """Record batches of some or all columns of an opened Parquet file, a few rows each, all valid.

    Raises:
      InputError: damaged, or other than the announced number of rows.
    """
    done = 0
    with _readable(path):
        # What a group says of its columns one by one aborts the process where it is damaged.
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        largest = max((group.total_byte_size for group in groups), default=0)
        require_memory(f"A group of rows of {path}", largest)
        rows = 1 if largest > _LARGE else _ROWS
        for batch in file.iter_batches(rows, columns=columns):
            batch.validate(full=True)
            done += len(batch)
            if done > file.metadata.num_rows:
                break
            yield batch
        if done != file.metadata.num_rows:
            why = f"it announces {file.metadata.num_rows} rows, but {done} or more are there"
            raise _unreadable(path, why)


def stream_batches(path: Path) -> Iterator:
    """Record batches of an Arrow stream (as `datasets` saves it), all valid.

    Raises:
      InputError: damaged, or it unpacks to more than memory holds.
    """
    import pyarrow as pa  # slow import: only where it is used

    content = read_bytes(path)
    with _readable(path, "an Arrow stream"):
        require_memory(f"{path} unpacked", unpacked_size(content))
        with pa.ipc.open_stream(content) as reader:
            _check_names(reader.schema)
            for batch in reader:
                batch.validate(full=True)
                yield batch


def _check_names(fields) -> None:
    """Raises `UnicodeDecodeError` unless all names of a schema are text."""
    for field in fields:
        if field.name is not None:
            _check_names(field.type.field(i) for i in range(field.type.num_fields))


@contextlib.contextmanager
def _readable(path: Path, kind: str = "a Parquet file") -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # pyarrow raises whatever a damaged file leads it to
        raise _unreadable(path, error, kind) from error


def _unreadable(path: Path, why, kind: str = "a Parquet file") -> InputError:
    lines = str(why).strip().splitlines() or [type(why).__name__]
    return InputError(f"{path} can't be read as {kind}: {lines[0][:300]}")
