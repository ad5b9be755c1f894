"""Tables of numbers: CSV and Parquet files with a row for each sample."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.data.arrow_files import batches, open_parquet
from fedjax_pfl.data.columns import column_names
from fedjax_pfl.data.csv_files import check_header, read_rows
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.labels import CLASSES
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.utils.errors import InputError, require, shown, unknown_name

ENDINGS = (".csv", ".parquet")
SET_ASIDE = "leave it out with skip_columns, or keep it for by_column with id_columns"
LONGEST = 1000  # characters of a cell; NumPy takes as many for every other cell of its column
TO_PREDICT = (
    "a regression predicts numbers; name another label_column, or leave task out for classes"
)


class _Table(NamedTuple):
    path: Path
    columns: Mapping[str, Sequence | np.ndarray]  # all of one length


def load_table(
    data_dir: Path | None,
    label_column: str = "label",
    id_columns: str = "",
    skip_columns: str = "",
    task: str = CLASSES,
) -> Dataset:
    """A table: one CSV or Parquet file, or a folder with train.csv (and test.csv), or .parquet.

    CSV files have a header. All columns but the label's and those named below are the numbers that
    a model sees; by default they are scaled to mean 0 and deviation 1 over the training samples.

    Args:
      data_dir: the file or folder.
      label_column: classes, as numbers or words, in ascending order; or numbers to predict.
      id_columns: columns to keep beside the numbers, for the rule `by_column`, such as
        "hospital".
      skip_columns: columns to leave out.
      task: "classification", or "regression" where the labels are numbers to predict.

    Raises:
      InputError: no such file, an unknown column, a value that is no number, or another task.
    """
    allowed = "'classification' or 'regression'; other tasks' samples can be an NPZ file"
    require(task in (CLASSES, "regression"), "task of a table", task, allowed)
    if data_dir is None:
        raise InputError("Data set 'table' needs the path of a file or folder: write table:PATH.")
    tables = [_read(path) for path in _files(data_dir)]
    names = list(tables[0].columns)
    ids = column_names(id_columns, names, tables[0].path)
    skipped = column_names(skip_columns, names, tables[0].path)
    if label_column not in names:
        raise unknown_name(f"column of {tables[0].path}:", label_column, names)
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
        labels, of_task = [_numbers(table, label_column, TO_PREDICT) for table in tables], {}
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
    columns = _of_parquet(path) if path.suffix == ".parquet" else _of_csv(path)
    if not len(next(iter(columns.values()), ())):
        raise InputError(f"{path} has no rows.")
    return _Table(path, columns)


def _of_csv(path: Path) -> dict[str, Sequence]:
    rows = read_rows(path)
    if not rows:
        return {}
    header = [cell.strip() for cell in rows[0]]
    check_header(path, header)
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(header)}


def _of_parquet(path: Path) -> dict[str, np.ndarray]:
    from pyarrow import types  # slow import: only where it is used

    file = open_parquet(path)
    schema = file.schema_arrow
    check_header(path, schema.names)
    require_memory(f"The cells of {path}", 8 * file.metadata.num_rows * len(schema.names))
    for field in schema:
        plain = types.is_integer(field.type) or types.is_floating(field.type)
        text = types.is_string(field.type) or types.is_large_string(field.type)
        if not (plain or text or types.is_boolean(field.type)):
            raise InputError(
                f"Column {field.name!r} of {path} must hold numbers or text, got {field.type}."
            )
    parts: dict[str, list[np.ndarray]] = {name: [] for name in schema.names}
    for batch in batches(path, file):
        for name, part in parts.items():
            column = batch.column(name)
            if column.null_count:
                raise InputError(f"Column {name!r} of {path} has rows without a value.")
            part.append(column.to_numpy(zero_copy_only=False))
    return {name: np.concatenate(part) if part else np.zeros(0) for name, part in parts.items()}


def _cells(table: _Table, name: str) -> np.ndarray:
    """A column that is used, as an array.

    Raises:
      InputError: a text in it is too long for a class, a number or a client's name.
    """
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
    """A column as stripped text."""
    words = np.char.strip(_cells(table, name).astype(str))
    missing = np.flatnonzero(words == "")[:1]
    if len(missing):
        raise InputError(f"Column {name!r} of {table.path} is empty in row {missing[0] + 1}.")
    return words


def _class_numbers(tables: Sequence[_Table], name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """(labels of each table in 0..C-1, the C classes as text)."""
    words = [_text(table, name) for table in tables]
    classes = _classes(words[0])
    fractions = [word for word in classes if _is_number(word) and float(word) % 1 != 0]
    if len(fractions) > len(words[0]) // 2:
        raise InputError(
            f"Column {name!r} of {tables[0].path} has {len(classes)} different values such as "
            f"{shown(str(fractions[0]))} in {len(words[0])} rows: numbers to predict need "
            "--data_option=task=regression."
        )
    order, found = np.argsort(classes, kind="stable"), []
    for table, labels in zip(tables, words, strict=True):
        strange = np.setdiff1d(labels, classes)
        if len(strange):
            raise InputError(
                f"{table.path} has the label {str(strange[0])!r:.100}, which {tables[0].path} "
                "lacks."
            )
        found.append(order[np.searchsorted(classes, labels, sorter=order)])
    return found, classes


def _classes(words: np.ndarray) -> np.ndarray:
    """The different labels: numbers ascending, words by the alphabet."""
    classes = np.unique(words)
    try:
        return classes[np.argsort(classes.astype(np.float64), kind="stable")]
    except ValueError:
        return classes


def _numbers(table: _Table, name: str, instead: str = SET_ASIDE) -> np.ndarray:
    cells = _cells(table, name)
    try:
        return cells.astype(np.float32)
    except ValueError:
        pass
    row = next(row for row, cell in enumerate(cells) if not _is_number(cell))
    raise InputError(
        f"Column {name!r} of {table.path} must hold numbers, got {shown(str(cells[row]))} in row "
        f"{row + 1}: {instead}."
    )


def _is_number(cell: Any) -> bool:
    try:
        np.float32(cell)
    except ValueError:
        return False
    return True
