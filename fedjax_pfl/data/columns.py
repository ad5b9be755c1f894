"""Columns beside samples and labels, such as the writer or the hospital of each sample."""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedjax_pfl.utils.conversions import as_array
from fedjax_pfl.utils.errors import InputError, require, require_name


def column_names(text: str, known: Collection[str], where: Path | str) -> tuple[str, ...]:
    """Split a text such as "writer,hospital" into names of columns.

    Args:
      text: names separated by commas; empty for none.
      known: names of all columns.
      where: the file of these columns, for messages.

    Raises:
      InputError: an unknown name (the message has the nearest one), or a name twice.
    """
    require(isinstance(text, str), "id_columns", text, "names with commas between them")
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    for name in names:
        require_name(f"column of {where}:", name, known)
        if names.count(name) > 1:
            raise InputError(f"id_columns names {name!r} {names.count(name)} times.")
    return names


def checked_columns(
    dataset: str, columns: Mapping[str, ArrayLike], count: int
) -> dict[str, np.ndarray]:
    """Convert columns to arrays [count] of int64, or of text if some value isn't an integer.

    Raises:
      InputError: another number of values, values of another type, an empty text, or two texts
        that differ only in the blanks around them.
    """
    require(isinstance(columns, Mapping), "columns", type(columns).__name__, "a dict")
    return {name: _checked(f"Column {name!r} of data set {dataset!r}", values, count)
            for name, values in columns.items()}  # fmt: skip


def _checked(what: str, values: ArrayLike, count: int) -> np.ndarray:
    column = as_array(values)
    require(column.shape == (count,), f"Shape of {what}", column.shape, f"({count},)")
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column):
        column = column.astype(str)
    require(column.dtype.kind in "iuU", what, str(column.dtype), "whole numbers or text")
    if column.dtype.kind == "u":
        fits = int(column.max(initial=0)) < 2**63
        require(fits, what, "a number beyond that", "whole numbers below 2^63")
    if column.dtype.kind != "U":
        return column.astype(np.int64)
    written, column = np.unique(column), np.char.strip(column)
    names, times = np.unique(np.char.strip(written), return_counts=True)
    for name in names[times > 1][:1]:
        raise InputError(
            f"{what} has {str(name)!r} with other blanks around it, too: write it one way."
        )
    missing = np.flatnonzero(column == "")[:1]
    if len(missing):
        raise InputError(f"{what} has no value for sample {missing[0]}.")
    return _numbers(column)


def _numbers(column: np.ndarray) -> np.ndarray:
    """Convert text to int64 if all of it is canonical integers ("07" stays text)."""
    if np.char.str_len(column).max(initial=0) > 18:  # more digits than int64 always holds
        return column
    try:
        numbers = column.astype(np.int64)
    except ValueError:
        return column
    return numbers if np.array_equal(numbers.astype(column.dtype), column) else column
