"""Tables of numbers: CSV and Parquet files with one row per sample."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.data.columns import column_names
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.labels import CLASSES
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.sources.source_registry import register_dataset
from fedjax_pfl.data.sources.splits import notes, table_files
from fedjax_pfl.data.tables import (
    Words,
    as_numbers,
    as_words,
    is_number,
    nameless,
    read_header,
    read_table,
)
from fedjax_pfl.utils.errors import InputError, require, require_name, shown

ENDINGS = (".csv", ".parquet")
NO_NUMBER = "leave it out with skip_columns, or keep it for by_column with id_columns"
NO_TARGET = (
    "a regression predicts numbers; name another label_column, or leave task out for classes"
)


class _Table(NamedTuple):
    path: Path
    columns: dict[str, Any]  # Arrow arrays of one length
    train: bool

    def numbers(self, names: Sequence[str], hint: str = NO_NUMBER) -> np.ndarray:
        """Return columns as numbers, float32 [n, columns], and forget them."""
        count = len(next(iter(self.columns.values())))
        require_memory(f"The numbers of {self.path}", 4 * count * len(names))
        values = np.empty((count, len(names)), np.float32)
        for k, name in enumerate(names):
            values[:, k] = as_numbers(self.path, name, self.columns.pop(name), hint, self.train)
        return values

    def words(self, name: str) -> Words:
        return as_words(self.path, name, self.columns[name])


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
    """A table: one CSV or Parquet file, or a folder with a file train and perhaps one test.

    CSV files have a header. All columns except the label's and those named below are the model's
    inputs; by default they are scaled to mean 0 and deviation 1 over the training samples. The test
    file may be called validation, too, and be of the other type. A column without a name, such as
    an index that pandas wrote, is left out, as the data set's note says.

    Args:
      data_dir: the file or folder.
      label_column: classes, as numbers or words, in ascending order; or numbers to predict.
      id_columns: columns for the rule `by_column`, such as "hospital".
      skip_columns: columns to leave out, which are not read; one without a name in the first place
        is "Unnamed: 0".
      task: "classification", or "regression" if the labels are numbers to predict.
    """
    allowed = "'classification' or 'regression'; other tasks' samples can be an NPZ file"
    require(task in (CLASSES, "regression"), "task of a table", task, allowed)
    files = table_files(data_dir, ENDINGS)
    if not files.train:
        if data_dir.is_dir():
            raise InputError(
                f"{data_dir} lacks train.csv or train.parquet: join the files of several clients, "
                "with a column for --partition=by_column."
            )
        raise InputError(f"No table {data_dir}: give a file .csv or .parquet, or a folder.")
    paths = [*files.train, *files.held_out]
    if paths[0].suffix.casefold() not in ENDINGS:
        raise InputError(f"{data_dir} must end in .csv, with commas between cells, or in .parquet.")
    headers = [read_header(path) for path in paths]
    names = headers[0].names
    ids = column_names(id_columns, names, paths[0])
    skipped = column_names(skip_columns, names, paths[0])
    require_name(f"label_column of {paths[0]}:", label_column, names)
    if label_column in (*ids, *skipped):
        raise InputError(f"Column {label_column!r} can't be the label and one that is kept aside.")
    unnamed = [name for name in nameless(names) if name not in (label_column, *ids, *skipped)]
    apart = (label_column, *ids, *skipped, *unnamed)
    features = [name for name in names if name not in apart]
    if not features:
        raise InputError(f"{paths[0]} has no column of numbers beside {', '.join(names)}.")
    needed = [*features, label_column, *ids]
    for path, header in zip(paths[1:], headers[1:], strict=True):
        missing = [name for name in needed if name not in header.names]
        if missing:
            raise InputError(f"{path} lacks the column {missing[0]!r} of {paths[0]}.")
    classes = task == CLASSES
    words = (label_column, *ids) if classes else ids
    numbers = features if classes else [*features, label_column]
    tables = [
        _Table(path, read_table(path, header, numbers, words), path == paths[0])
        for path, header in zip(paths, headers, strict=True)
    ]
    about: dict[str, Any] = {}
    if classes:
        labels, known = _class_numbers(tables, label_column)
        about = {"num_classes": len(known), "class_names": tuple(map(str, known))}
    else:
        labels = [table.numbers([label_column], NO_TARGET) for table in tables]
    kept = {name: [table.words(name) for table in tables] for name in ids}
    inputs = [table.numbers(features) for table in tables]
    arrays = [array for pair in zip(inputs, labels, strict=True) for array in pair]
    without = [f"without the nameless column {name!r}" for name in unnamed]
    dataset = dataset_from_arrays(
        data_dir.resolve().stem,
        *arrays,
        input_scaling="standard",
        task=task,
        note=notes(*without, files.note()),
        **about,
        columns={
            name: np.concatenate([one.values[one.rows] for one in parts])
            for name, parts in kept.items()
        },
    )
    return replace(dataset, feature_names=tuple(features))


def _class_numbers(tables: Sequence[_Table], name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return (labels of each table in 0..C-1, the C classes as text)."""
    words = [table.words(name) for table in tables]
    classes, first = words[0].values, tables[0].path
    if all(map(is_number, classes)):  # ascending numbers, not by the alphabet
        classes = classes[np.argsort(classes.astype(np.float64), kind="stable")]
    fractions = [word for word in classes if is_number(word) and float(word) % 1 != 0]
    count = len(words[0].rows)
    if len(fractions) > count // 2:
        raise InputError(
            f"Column {name!r} of {first} has {len(classes)} different values such as "
            f"{shown(str(fractions[0]))} in {count} rows: numbers to predict need "
            "--data_option=task=regression."
        )
    order, numbers = np.argsort(classes, kind="stable"), []
    for table, labels in zip(tables, words, strict=True):
        unknown = np.setdiff1d(labels.values, classes)
        if len(unknown):
            raise InputError(
                f"{table.path} has the label {str(unknown[0])!r:.100}, which {first} lacks."
            )
        places = order[np.searchsorted(classes, labels.values, sorter=order)]
        numbers.append(places[labels.rows])
    return numbers, classes
