"""Columns beside samples and labels, such as the writer or the hospital of each sample."""

import re
import unicodedata
from collections.abc import Collection, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_pfl.utils.conversions import as_array, kind_of, require_unmasked
from fedjax_pfl.utils.errors import InputError, refused, require, require_name, shown

# Words that other programs write where there is no value. "none" may be a class.
MISSING = frozenset(
    {"", "?", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "+nan", "null", "nat"}
)
INFINITE = ("inf", "infinity")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMAS = re.compile(r"[+-]?([0-9]+,[0-9]+|[0-9]{1,3}([., '][0-9]{3})+([.,][0-9]+)?)")


class Words(NamedTuple):
    """A column as text: its distinct values [V], and the value of each row [n]."""

    values: np.ndarray
    rows: np.ndarray


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


def check_frame(what: str, frame: Any) -> None:
    """Raise `InputError` if a column of a pandas frame holds no numbers, or lacks some."""
    for k, (name, empty) in enumerate(frame.isna().sum().items()):
        column = frame.iloc[:, k]
        if as_array(column.dropna()).dtype.kind not in "biuf":
            way = "make numbers of it, as pandas.get_dummies does, or leave it out"
            raise InputError(f"Column {name!r} of the {what} holds {column.dtype}: {way}.")
        if empty:
            way = "fill them, or leave the column out"
            raise InputError(f"Column {name!r} of the {what} has {empty} missing values: {way}.")


def feature_names(x: Any) -> tuple[str, ...]:
    """Return the names of a data frame's columns; () without any, or if some are not text."""
    names = tuple(getattr(x, "columns", ()))
    return names if all(isinstance(name, str) for name in names) else ()


def check_feature_names(what: str, x: Any, known: tuple[str, ...], kept: str) -> None:
    """Raise `InputError` if a data frame has other columns than `known`, or in another order.

    `kept` is where the user has them.
    """
    names = feature_names(x)
    if not names or not known or names == known:
        return
    for name in names:
        require_name(f"column of the {what}:", name, known)
    for name in known:
        if name not in names:
            raise InputError(f"The {what} lack the column {name!r}.")
    order = f"{shown(known)}, in this order: take frame[[*{kept}]]"
    raise refused(f"Columns of the {what}", names, order)


def checked_columns(
    dataset: str, columns: Mapping[str, ArrayLike], count: int
) -> dict[str, np.ndarray]:
    """Convert columns to arrays [count] of int64, or of text if some value isn't an integer.

    Raises:
      InputError: another number of values, values of another type, a word for a missing value, one
        number that is written in two ways, or two texts that differ only in the blanks around them.
    """
    return {name: _checked(f"Column {name!r} of data set {dataset!r}", values, count)
            for name, values in columns.items()}  # fmt: skip


def _checked(what: str, values: ArrayLike, count: int) -> np.ndarray:
    require_unmasked(what, values)
    column = as_array(values)
    require(column.shape == (count,), f"Shape of {what}", column.shape, f"({count},)")
    if column.dtype.kind not in "iuU":
        raise refused(what, kind_of(column), "whole numbers or text")
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
    check_words(what, Words(*np.unique(column, return_inverse=True)))
    return _numbers(column)


def _numbers(column: np.ndarray) -> np.ndarray:
    """Convert text to int64 if all of it is canonical integers ("07" stays text)."""
    if np.char.str_len(column).max(initial=0) > 18:  # int64 may not hold more digits
        return column
    try:
        numbers = column.astype(np.int64)
    except ValueError:
        return column
    return numbers if np.array_equal(numbers.astype(column.dtype), column) else column


def first_row(rows: np.ndarray, value: int) -> int:
    return int(np.argmax(rows == value)) + 1


def check_words(what: str, words: Words) -> None:
    """Check the values of a column of classes or clients.

    Raises:
      InputError: a word for a missing value, one that is written in two ways, or an infinite
        number among numbers.
    """
    values = [str(value) for value in words.values]
    for k, value in enumerate(values):
        if is_missing(value):
            got = f"has {value!r}, a word for a missing value," if value else "is empty"
            raise InputError(f"{what} {got} in row {first_row(words.rows, k)}.")
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):  # 1e5 may be a name, too
        numbers = [value for value in numbers if "e" not in value.casefold()]
    seen: dict[Decimal | str, str] = {}
    for key, value in [(Decimal(value), value) for value in numbers] + [
        (unicodedata.normalize("NFKC", value), value) for value in values
    ]:
        other = seen.setdefault(key, value)
        if other != value:
            raise InputError(f"{what} has {other} also as {value}: write equal values alike.")
    infinite = [value for value in values if value.lstrip("+-").casefold() in INFINITE]
    if infinite and len(numbers) + len(infinite) == len(values) > len(infinite):
        raise InputError(f"{what} has {infinite[0]!r} among numbers: write finite ones.")
    commas = [value for value in values if has_commas(value)]
    if commas and len(numbers) + len(commas) == len(values):
        raise InputError(
            f"{what} has {commas[0]!r}: write a decimal point, and nothing between thousands."
        )


def has_commas(word: str) -> bool:
    """Return whether a word is a number with a decimal comma or with marks between thousands."""
    return not is_number(word) and _COMMAS.fullmatch(word.strip()) is not None


def is_missing(word: str) -> bool:
    """Return whether a word stands for a missing value."""
    return word.casefold() in MISSING or word == "None"


def is_number(word: str) -> bool:
    """Return whether a word is a decimal number; "2021_03" and "inf" are not."""
    return _NUMBER.fullmatch(word.strip()) is not None
