"""Conversion of values from command lines and Python to numbers that programs can represent.

Programs count in int32 and compute in float32: larger values would wrap, or become 0 or infinite.
"""

import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_pfl.utils.errors import find_name, require

LIMIT = 2**31  # whole numbers are below
LARGEST, SMALLEST = (float(getattr(np.finfo(np.float32), name)) for name in ("max", "tiny"))


def convert(name: str, value: Any, kind: Any) -> Any:
    """Convert a value (a command-line string, or already typed) to an annotated type.

    For optional types, None and the word "none" become None.

    Raises:
      InputError: the value can't be converted, or programs can't represent it.
    """
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        return find_name(f"value of {name}", value, choices)
    if typing.get_origin(kind) is types.UnionType:
        (inner,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
        none = value is None or (isinstance(value, str) and value.strip().lower() == "none")
        return None if none else convert(name, value, inner)
    if kind is bool:
        words = {"true": True, "1": True, "false": False, "0": False}
        plain = isinstance(value, bool | np.bool_ | str) or (type(value) is int and 0 <= value <= 1)
        word = str(value).lower() if plain else ""
        require(word in words, name, value, "true or false")
        return words[word]
    if kind is str:
        require(isinstance(value, str), name, value, "text")
    if kind not in (int, float):
        return value
    number, more = _read(value), ""
    if isinstance(value, str) and "," in value:
        more = " (several: settings of `simulate`, or --grid of a sweep)"
    if kind is int:
        integral = isinstance(number, int) or (not isinstance(value, str) and number.is_integer())
        require(integral, name, value, f"a whole number{more}")
        require(abs(number) < LIMIT, name, value, "a whole number below 2^31 in size")
        return int(number)
    require(number == number, name, value, f"a number{more}")
    held = number == 0 or SMALLEST <= abs(number) <= LARGEST
    allowed = f"0 or a number of {SMALLEST:.3g} to {LARGEST:.3g} in size, as in float32"
    require(held, name, value, allowed)
    return float(number)


def number(name: str, value: Any, allowed: str, low: float = 0, high: float = math.inf) -> float:
    """Convert a value to a float in low..high that programs can represent.

    Args:
      name: name of the value, for error messages.
      value: the value.
      allowed: the range in words, for error messages.
      low, high: the range, inclusive.

    Raises:
      InputError: the value is text, not a number, or out of range.
    """
    require(not isinstance(value, str | bytes), name, value, "a number")
    # NaN is in no range; infinity gets the same message.
    outside = isinstance(value, float) and not (low <= value <= high and math.isfinite(value))
    result = math.nan if outside else convert(name, value, float)
    require(low <= result <= high, name, value, allowed)
    return result


def is_list(value: Any) -> bool:
    """Return whether a value is a list, a tuple, a range or an array with one axis."""
    if isinstance(value, Sequence):
        return not isinstance(value, str | bytes | bytearray)
    return len(getattr(value, "shape", ())) == 1


def as_array(values: Any) -> np.ndarray:
    """Convert values to an array; an array of None for what has no shape, such as ragged lists.

    Objects that are numbers, text or arrays of one shape, as in a pandas frame or series, become an
    array of these.
    """
    values = values.detach() if hasattr(values, "detach") else values  # of PyTorch
    values = values.toarray() if hasattr(values, "toarray") else values  # sparse
    try:
        array = np.asarray(values)
        if array.dtype.name == "bfloat16":
            return array.astype(np.float32)
        if array.dtype != object or not array.shape:
            return array
        plain = np.asarray(array.tolist())
        mixed = plain.dtype.kind == "U" and not all(isinstance(one, str) for one in array.flat)
        return array if mixed else plain
    except (ValueError, TypeError, OverflowError):
        return np.asarray(None)


def kind_of(array: np.ndarray) -> str:
    """Return an array's type for messages, or how many of its values are missing."""
    import pandas as pd

    missing = int(pd.isna(array).sum())
    return f"{missing} missing values" if missing else str(array.dtype)


def require_unmasked(what: str, values: Any) -> None:
    """Raise `InputError` if an array, or one in a list, has masked values.

    Converted to a plain array, these would count as data.
    """
    parts = values if isinstance(values, list | tuple) else [values]
    masked = [part for part in parts if isinstance(part, np.ma.MaskedArray)]
    count = sum(int(np.ma.getmaskarray(part).sum()) for part in masked)
    require(count == 0, f"Values of the {what}", f"{count} masked values", "without a mask")


def finite_float32(what: str, values: np.ndarray) -> np.ndarray:
    """Convert numbers to float32; `InputError` if some are not finite in it."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float32, copy=False)
    bad = np.count_nonzero(~np.isfinite(values))
    require(bad == 0, f"Values of the {what}", f"{bad} NaN or infinite values", "finite float32")
    return values


def keyword_defaults(function: Callable) -> dict[str, Any]:
    """Return the keyword-only parameters of a function and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def accepted(function: Callable, **options: Any) -> dict[str, Any]:
    """Return those of the options that a function has parameters for."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}


def defined_at(function: Any) -> tuple[str, str]:
    """Return (module, name) of a function's definition, which repeated definitions share.

    A `functools.partial` is identified by its function and arguments, an object without a name by
    its type.
    """
    if isinstance(function, functools.partial):
        module, name = defined_at(function.func)
        return module, f"{name}{function.args}{function.keywords}"
    named = function if hasattr(function, "__qualname__") else type(function)
    return named.__module__, named.__qualname__


def decimal(word: str) -> int | None:
    """Return the whole number below 2^31 that a word represents, or None."""
    word = word.strip()
    if not (word.isascii() and word.isdecimal()) or len(word.lstrip("0")) > 10:
        return None  # Python refuses to read thousands of digits
    return int(word) if int(word) < LIMIT else None


def _read(value: Any) -> int | float:
    """Return a Python number, or NaN if the value is not a number."""
    several = is_list(value) or getattr(value, "ndim", 0) > 0
    if isinstance(value, bool | np.bool_ | bytes | bytearray) or several:
        return math.nan
    if isinstance(value, int | np.integer):
        return int(value)
    try:
        if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,4000}", value.strip()):
            return int(value)  # Python reads no more digits
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
