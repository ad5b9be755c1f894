"""Columns of CSV and Parquet files, read by pyarrow."""

import contextlib
import csv
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.data.columns import Words, check_words, first_row, has_commas, is_number
from fedjax_pfl.data.csv_files import check_header, check_separator, read_rows
from fedjax_pfl.data.files import read_bytes, reading, require_file
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.parquet_files import open_parquet, row_groups
from fedjax_pfl.utils.errors import InputError, shown

LONGEST = 1000  # characters of a cell; NumPy takes as many for every other cell of its column
_NAMELESS = re.compile(r"([Uu]nnamed: [0-9]+)?|__index_level_[0-9]+__")
_CSV = "a CSV file in UTF-8"


class Header(NamedTuple):
    """Names of a file's columns; nameless ones are called "Unnamed: 0", as by pandas."""

    names: list[str]
    lines: int = 0


def read_header(path: Path) -> Header:
    """Return the names of the columns of a CSV or Parquet file.

    Raises:
      InputError: not such a file, two columns of one name, or cells that are not separated by
        commas.
    """
    if is_parquet(path):
        header = Header(list(open_parquet(path).schema_arrow.names))
    else:
        require_file(path)
        with reading(path, _CSV), path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            first = next(filter(None, reader), [])
            names = [cell.strip() or f"Unnamed: {k}" for k, cell in enumerate(first)]
            header = Header(names, reader.line_num)
        if not first:
            raise InputError(f"{path} is empty: its first row must name the columns.")
        check_separator(path, header.names)
    check_header(path, header.names)
    return header


def is_parquet(path: Path) -> bool:
    return path.suffix.casefold() == ".parquet"


def nameless(names: Collection[str]) -> list[str]:
    """Return the names of columns that nobody named, such as an index that pandas wrote."""
    return [name for name in names if _NAMELESS.fullmatch(name)]


def read_table(
    path: Path, header: Header, numbers: Collection[str], words: Collection[str]
) -> dict[str, Any]:
    """Return columns of a file as Arrow arrays, numbers perhaps as text; others are not read.

    Raises:
      InputError: damaged, larger than memory, without rows, or rows of different lengths.
    """
    columns = [*dict.fromkeys([*numbers, *words])]
    if is_parquet(path):
        table = _read_parquet(path, columns)
    else:
        table = _read_csv(path, header, columns, {*numbers} - {*words})
    if not len(table[columns[0]]):
        raise InputError(f"{path} has no rows.")
    return table


def _read_parquet(path: Path, columns: list[str]) -> dict[str, Any]:
    import pyarrow as pa  # slow import: only where it is used

    file = open_parquet(path)
    require_memory(f"The cells of {path}", 8 * file.metadata.num_rows * len(columns))
    for name in columns:
        kind = file.schema_arrow.field(name).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(fits(plain) for fits in (
            pa.types.is_string, pa.types.is_large_string, pa.types.is_integer,
            pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal,
        )):  # fmt: skip
            raise InputError(f"Column {name!r} of {path} must hold numbers or text, got {plain}.")
    groups = [*row_groups(path, columns)]
    empty = file.schema_arrow.empty_table().select(columns)
    table = pa.concat_tables(groups) if groups else empty
    return {name: table[name].combine_chunks() for name in columns}


def _read_csv(
    path: Path, header: Header, columns: list[str], numbers: Collection[str]
) -> dict[str, Any]:
    """Read a CSV file by pyarrow, or row by row for the reason why pyarrow doesn't read it.

    pyarrow silently joins rows in which a quotation mark is open.
    """
    import pyarrow as pa  # slow import: only where it is used
    import pyarrow.csv

    kinds = {name: pa.float64() if name in numbers else pa.string() for name in columns}
    require_memory(f"The cells of {path}", require_file(path))
    content = read_bytes(path)
    if b'"' not in content:
        with contextlib.suppress(pa.ArrowException):
            table = pyarrow.csv.read_csv(
                pa.BufferReader(content),
                pyarrow.csv.ReadOptions(column_names=header.names, skip_rows=header.lines),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=columns, column_types=kinds, null_values=[]
                ),
            )
            return {name: table[name].combine_chunks() for name in columns}
    rows = read_rows(path, len(header.names))[1:]
    places = [(name, header.names.index(name)) for name in columns]
    return {name: pa.array([row[k] for row in rows], pa.string()) for name, k in places}


def as_numbers(path: Path, name: str, column: Any, hint: str, train: bool) -> np.ndarray:
    """Convert a column, of training samples or others, to float32 [n].

    Raises:
      InputError: a cell without a finite number, which the message shows with its row, or training
        samples' numbers that differ too little for float32, such as times in seconds since 1970.
    """
    import pyarrow as pa  # slow import: only where it is used
    import pyarrow.compute as pc

    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.call_function("utf8_trim_whitespace", [column])
        exact = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        exact = np.array([_as_number(cell) for cell in column.to_pylist()])
    with np.errstate(over="ignore"):
        values = exact.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(values))[:1]
    if len(wrong):
        cell = column[int(wrong[0])].as_py()
        raise InputError(
            f"Column {name!r} of {path} must hold numbers, got {shown(_text(cell))} in row "
            f"{wrong[0] + 1}: {_advice(_text(cell), hint)}."
        )
    low, high = float(exact.min()), float(exact.max())
    # A smaller range is noise of float64; the seconds of a whole day since 1970 lose less.
    least, lost = 1e-12 * max(-low, high), float(np.abs(exact - values).max())
    if train and least < high - low < 256 * lost:
        raise InputError(
            f"Column {name!r} of {path} has numbers in {low:.17g}..{high:.17g}, whose differences "
            "float32 can't hold: subtract the smallest, or leave the column out."
        )
    return values


def _as_number(cell: Any) -> float:
    return float(cell) if is_number(str(cell)) else np.nan


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _advice(cell: str, hint: str) -> str:
    if has_commas(cell):
        return "write a decimal point, and nothing between thousands"
    return hint


def as_words(path: Path, name: str, column: Any) -> Words:
    """Convert a column to text without blanks at the ends; whole numbers are written as 7.

    Raises:
      InputError: a row without a value, or with a word for a missing one; a text that is too long,
        or equal numbers that are written in two ways.
    """
    import pyarrow as pa  # slow import: only where it is used
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        whole = np.all(np.isnan(numbers) | (np.mod(numbers, 1) == 0))
        texts = [f"{x:.0f}" if whole else str(x) for x in np.nan_to_num(numbers).tolist()]
        column = pa.array(texts, mask=np.isnan(numbers))
    elif not pa.types.is_dictionary(kind):
        column = column.cast(pa.string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    values = [_text(value).strip() for value in column.dictionary.to_pylist()]
    rows = np.asarray(pc.fill_null(column.indices, -1), np.int64)
    for k, value in enumerate(values):
        if len(value) > LONGEST:
            raise InputError(
                f"Column {name!r} of {path} must hold texts of at most {LONGEST:,} characters, got "
                f"{len(value):,} in row {first_row(rows, k)}: leave it out with skip_columns."
            )
    values, inverse = np.unique(np.array([*values, ""], dtype=str), return_inverse=True)
    rows = inverse[rows]
    used = np.unique(rows)
    words = Words(values[used], np.searchsorted(used, rows))
    check_words(f"Column {name!r} of {path}", words)
    return words
