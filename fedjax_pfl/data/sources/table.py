"""Tables of numbers: CSV and Parquet files with one row per sample."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.data.arrow_files import read_columns
from fedjax_pfl.data.columns import column_names
from fedjax_pfl.data.csv_files import check_header, read_rows
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.labels import CLASSES
from fedjax_pfl.data.sources.source_registry import register_dataset
from fedjax_pfl.utils.errors import InputError, require, require_name, shown

ENDINGS = (".csv", ".parquet")
NO_NUMBER = "leave it out with skip_columns, or keep it for by_column with id_columns"
NO_TARGET = (
    "a regression predicts numbers; name another label_column, or leave task out for classes"
)
LONGEST = 1000  # characters of a cell; NumPy takes as many for every other cell of its column


class _Table(NamedTuple):
    path: Path
    columns: Mapping[str, Sequence | np.ndarray]  # all of one length


@register_dataset(
    "table",
    "your own table of numbers, table:PATH of a CSV or Parquet file",
    needs="the path of a file or folder",
)
def load_table(
    data_dir: Path,
    label_column: str = "label",
    id_columns: str = "",
    skip_columns: str = "",
    task: str = CLASSES,
) -> Dataset:
    """A table: one CSV or Parquet file, or a folder with train.csv (and test.csv), or .parquet.

    CSV files have a header. All columns except the label's and those named below are the model's
    inputs; by default they are scaled to mean 0 and deviation 1 over the training samples.

    Args:
      data_dir: the file or folder.
      label_column: classes, as numbers or words, in ascending order; or numbers to predict.
      id_columns: columns for the rule `by_column`, such as "hospital".
      skip_columns: columns to leave out.
      task: "classification", or "regression" if the labels are numbers to predict.
    """
    allowed = "'classification' or 'regression'; other tasks' samples can be an NPZ file"
    require(task in (CLASSES, "regression"), "task of a table", task, allowed)
    tables = [_read(path) for path in _files(data_dir)]
    names = list(tables[0].columns)
    ids = column_names(id_columns, names, tables[0].path)
    skipped = column_names(skip_columns, names, tables[0].path)
    require_name(f"column of {tables[0].path}:", label_column, names)
    if label_column in (*ids, *skipped):
        raise InputError(f"Column {label_column!r} can't be the label and one that is kept aside.")
    features = [name for name in names if name not in (label_column, *ids, *skipped)]
    if not features:
        raise InputError(f"{tables[0].path} has no column of numbers beside {', '.join(names)}.")
    for table in tables[1:]:
        missing = [name for name in names if name not in table.columns]
        if missing:
            raise InputError(f"{table.path} lacks the column {missing[0]!r} of {tables[0].path}.")
    inputs = [np.stack([_numbers(table, name) for name in features], axis=1) for table in tables]
    if task == CLASSES:
        labels, classes = _class_numbers(tables, label_column)
        of_task = {"num_classes": len(classes), "class_names": tuple(map(str, classes))}
    else:
        labels, of_task = [_numbers(table, label_column, NO_TARGET) for table in tables], {}
    arrays = [array for pair in zip(inputs, labels, strict=True) for array in pair]
    return dataset_from_arrays(
        data_dir.resolve().stem,
        *arrays,
        input_scaling="standard",
        task=task,
        **of_task,
        columns={name: np.concatenate([_text(table, name) for table in tables]) for name in ids},
    )


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        if not place.exists() or place.suffix not in ENDINGS:
            raise InputError(f"No table {place}: give a file .csv or .parquet, or a folder.")
        return [place]
    for ending in ENDINGS:
        train, test = (place / f"{split}{ending}" for split in ("train", "test"))
        if train.exists():
            return [train, *([test] if test.exists() else [])]
    raise InputError(f"{place} lacks train.csv or train.parquet.")


def _read(path: Path) -> _Table:
    if path.suffix == ".parquet":
        columns = read_columns(path)
    else:
        header, *rows = read_rows(path) or [[]]
        header = [cell.strip() for cell in header]
        check_header(path, header)
        columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    if not len(next(iter(columns.values()), ())):
        raise InputError(f"{path} has no rows.")
    return _Table(path, columns)


def _cells(table: _Table, name: str) -> np.ndarray:
    """Return a used column as an array; `InputError` if a text is too long for a name."""
    cells = table.columns[name]
    texts = not isinstance(cells, np.ndarray) or cells.dtype.kind == "O"
    for row, cell in enumerate(cells if texts else (), start=1):
        if isinstance(cell, str) and len(cell) > LONGEST:
            raise InputError(
                f"Column {name!r} of {table.path} must hold texts of at most {LONGEST:,} "
                f"characters, got {len(cell):,} in row {row}: leave it out with skip_columns."
            )
    return np.asarray(cells)


def _text(table: _Table, name: str) -> np.ndarray:
    """Return a column as stripped text."""
    cells = _cells(table, name)
    words = np.char.strip(cells.astype(str))
    absent = np.isnan(cells) if cells.dtype.kind == "f" else words == ""
    missing = np.flatnonzero(absent)[:1]
    if len(missing):
        raise InputError(f"Column {name!r} of {table.path} is empty in row {missing[0] + 1}.")
    return words


def _class_numbers(tables: Sequence[_Table], name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return (labels of each table in 0..C-1, the C classes as text)."""
    words = [_text(table, name) for table in tables]
    classes = np.unique(words[0])
    if all(map(_is_number, classes)):  # ascending numbers, not by the alphabet
        classes = classes[np.argsort(classes.astype(np.float64), kind="stable")]
        equal = np.flatnonzero(np.diff(classes.astype(np.float64)) == 0)[:1]
        if len(equal):
            one, other = map(str, classes[equal[0] : equal[0] + 2])
            raise InputError(
                f"Column {name!r} of {tables[0].path} has the label {one} also as {other}: write "
                "equal numbers alike."
            )
    fractions = [word for word in classes if _is_number(word) and float(word) % 1 != 0]
    if len(fractions) > len(words[0]) // 2:
        raise InputError(
            f"Column {name!r} of {tables[0].path} has {len(classes)} different values such as "
            f"{shown(str(fractions[0]))} in {len(words[0])} rows: numbers to predict need "
            "--data_option=task=regression."
        )
    order, numbers = np.argsort(classes, kind="stable"), []
    for table, labels in zip(tables, words, strict=True):
        unknown = np.setdiff1d(labels, classes)
        if len(unknown):
            raise InputError(
                f"{table.path} has the label {str(unknown[0])!r:.100}, which {tables[0].path} "
                "lacks."
            )
        numbers.append(order[np.searchsorted(classes, labels, sorter=order)])
    return numbers, classes


def _numbers(table: _Table, name: str, hint: str = NO_NUMBER) -> np.ndarray:
    cells = _cells(table, name)
    try:
        return cells.astype(np.float32)
    except ValueError:
        pass
    row = next(row for row, cell in enumerate(cells) if not _is_number(cell))
    raise InputError(
        f"Column {name!r} of {table.path} must hold numbers, got {shown(str(cells[row]))} in row "
        f"{row + 1}: {hint}."
    )


def _is_number(cell: Any) -> bool:
    try:
        np.float32(cell)
    except ValueError:
        return False
    return True
