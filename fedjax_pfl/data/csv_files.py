"""Rows of CSV files, with a sentence for each thing that is wrong with one."""

import contextlib
import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fedjax_pfl.data.files import require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError


def read_rows(path: Path, columns: int | None = None, said: str = "") -> list[list[str]]:
    """The cells of a CSV file's rows; every row has `columns` of them, or as many as the first.

    Args:
      path: the file.
      columns: how many.
      said: what sentences add to that number.

    Raises:
      InputError: no CSV file in UTF-8, or a row of another length.
    """
    # Python takes some ten bytes for one in a table of short cells.
    require_memory(f"The cells of {path}", 10 * require_file(path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, _long_cells():
            return _rows(path, csv.reader(file, strict=True), columns, said)
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} can't be read as a CSV file in UTF-8: {error}") from error


def check_header(path: Path, header: list[str]) -> None:
    """Raises `InputError` if two columns have one name."""
    for name, count in Counter(header).items():
        if name and count > 1:
            raise InputError(f"{path} has {count} columns called {name!r}: rename all but one.")


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Lets a cell have any length while it lasts: Python's own limit is 131,072 characters."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _rows(path: Path, reader, columns: int | None, said: str) -> list[list[str]]:
    rows = []
    for row in reader:
        if not row:
            continue  # an empty line
        wanted = columns or (len(rows[0]) if rows else max(len(row), 2))
        if len(row) != wanted:
            raise InputError(
                f"{path} must have {wanted} columns{said} in every row, got {len(row)} in the "
                f"row that ends in line {reader.line_num}."
            )
        rows.append(row)
    return rows
