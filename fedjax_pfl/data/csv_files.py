"""Rows of CSV files, read with Python's strict parser.

Other parsers (pyarrow's, pandas') read a file with an open quotation mark without complaint and
silently join its rows.
"""

import csv
from collections import Counter
from pathlib import Path

from fedjax_pfl.data.files import reading, require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError, require


def read_rows(path: Path, columns: int | None = None, hint: str = "") -> list[list[str]]:
    """Return the cells of each row of a CSV file, without empty lines.

    Args:
      path: the file.
      columns: cells of every row; None for as many as the first row has, at least 2.
      hint: added to that number in messages.
    """
    # Short cells take about ten times their size as Python objects.
    require_memory(f"The cells of {path}", 10 * require_file(path))
    rows = []
    longest = csv.field_size_limit(2**31 - 1)  # Python's own limit is 131,072 characters
    try:
        with (
            reading(path, "a CSV file in UTF-8"),
            path.open(encoding="utf-8-sig", newline="") as file,
        ):
            reader = csv.reader(file, strict=True)
            for row in filter(None, reader):
                if not rows:
                    check_separator(path, row)
                columns = columns or max(len(row), 2)
                if len(row) != columns:
                    raise InputError(
                        f"{path} must have {columns} columns{hint} in every row, got {len(row)} in "
                        f"the row that ends in line {reader.line_num}."
                    )
                rows.append(row)
    finally:
        csv.field_size_limit(longest)
    return rows


def check_separator(path: Path, first: list[str]) -> None:
    """Raise `InputError` if the first row is one cell that other marks than commas divide."""
    for mark in ";\t|" if len(first) == 1 else "":
        allowed = "separated by commas, with points in numbers"
        require(mark not in first[0], f"Cells of {path}", mark, allowed)


def check_header(path: Path, header: list[str]) -> None:
    """Raise `InputError` if two columns have one name."""
    for name, count in Counter(header).items():
        if name and count > 1:
            raise InputError(f"{path} has {count} columns called {name!r}: rename all but one.")
