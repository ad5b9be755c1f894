"""Errors that users see, and formatting of their messages."""

import inspect
import operator
import os
import re
import reprlib
import warnings
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from fedjax_pfl.utils import aliases
from fedjax_pfl.utils.name_matching import find_matches, normalized, suggestions

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
LONGEST = 2000  # characters of a message
USER_DEFINED = (
    "One of your own is known once its file is imported, in commands by --import_file=FILE.py."
)
UNCOUNTED = "is not counted, which would state a false epsilon"  # end of a clause
MOST = 8  # entries of an array or a list that is shown completely


class InputError(ValueError):
    """Invalid input; the message states what was given and what is allowed.

    The message is one line that every terminal can print, see `sentence`.

    Args:
      message: the message.
      script: lines of a command or program, shown verbatim below the message.
    """

    def __init__(self, message: str = "", script: str = ""):
        super().__init__(sentence(message) + (f"\n{script}" if script else ""))


class UncountedRelease(InputError):
    """A round releases what privacy accounting can't count: a stated epsilon would be false."""


class OutputError(OSError):
    """An output can't be written; the message states which file, and why."""


def warn(message: str) -> None:
    """Warn at the line of the user's program that led here: the nearest outside the package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def sentence(text: object) -> str:
    """Return a text as one line of at most `LONGEST` characters.

    Line breaks become blanks; control characters and invalid UTF-8 are escaped. Error numbers and
    addresses of objects are removed.
    """
    line = re.sub(r"\[Errno -?\d+\] | at 0x[0-9a-f]+\b", "", str(text))
    line = " ".join(part.strip() for part in line.splitlines())
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], line)
    return cut(line.encode("utf-8", "backslashreplace").decode(), LONGEST)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def cut(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters by removing its middle."""
    if len(text) <= most:
        return text
    last = most // 4
    return f"{text[: most - last - 5]} ... {text[len(text) - last :]}"


class _Short(reprlib.Repr):
    """`repr` of bounded length; arrays are shown by shape and type."""

    def __init__(self):
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = MOST
        self.maxdict, self.maxlevel = MOST // 2, 3
        self.maxstring = self.maxother = 200

    def repr1(self, x, level):
        if hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type):
            return self._array(x, level)
        try:
            return super().repr1(x, level)
        except Exception:  # a foreign `repr` may fail; the message must not
            return self.repr_instance(x, level)

    def repr_int(self, x, level):
        if x.bit_length() > 200:  # Python refuses to write integers of thousands of digits
            return f"an integer of about {int(x.bit_length() * 0.30103) + 1} digits"
        return repr(x)

    def repr_str(self, x, level):
        return repr(cut(x, self.maxstring))

    def repr_bytes(self, x, level):
        return repr(x) if len(x) <= self.maxstring else f"{len(x)} bytes"

    def _array(self, x, level):
        try:
            if x.ndim == 0 or (x.ndim == 1 and x.size <= MOST):
                return super().repr1(x.tolist(), level)
        except Exception:  # a tracer has no values, a deleted array neither
            pass
        return f"an array {list(x.shape)} of {x.dtype}"


_short = _Short()


def shown(value: object) -> str:
    """Format a value for messages, like a short `repr`.

    Arrays and tracers with more than a few entries are shown by shape and type; long lists, texts
    and integers are shortened.
    """
    return cut(_short.repr(value), 400)


def unknown_name(
    kind: str,
    value: object,
    valid: Iterable[str],
    *,
    listed: str | None = None,
    hint: str | None = None,
    user_defined: bool = False,
) -> InputError:
    """Return an `InputError` for an unknown name, with suggestions and all valid names.

    Args:
      kind: what is named, in the singular, such as "algorithm" or "data set".
      value: the unknown name.
      valid: all valid names.
      listed: a command that lists the valid names if they are too many, such as "run --list".
      hint: a sentence on this name, instead of the nearest valid name.
      user_defined: mention that users can register names of their own.
    """
    valid = sorted(valid)
    if hint is None:
        near = suggestions(value, valid) if isinstance(value, str) else []
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
    hint = f"{hint} {USER_DEFINED}".strip() if user_defined else hint
    every = f"{listed} shows them" if listed else f"Valid: {', '.join(valid)}"
    return InputError(
        " ".join(filter(None, (f"Unknown {kind} {shown(value)}.", hint, f"{every}.")))
    )


def unknown_hyperparameter(
    name: str, value: object, valid: Collection[str], where: str = ""
) -> InputError:
    """Return an `InputError` for an unknown hyperparameter of the algorithm `name`.

    Args:
      name: name of the algorithm.
      value: the unknown name.
      valid: all valid names.
      where: context, such as " in --grid".
    """
    word = normalized(value) if isinstance(value, str) else ""
    ours = aliases.HYPERPARAMETERS.get(name, {}).get(word)
    hint = f"Did you mean {ours!r}?" if ours and ours in valid else None
    return unknown_name(f"hyperparameter of {name!r}{where}", value, valid, hint=hint)


def require_name(kind: str, value: object, valid: Iterable[str]) -> None:
    """Raise `unknown_name` unless `value` is one of the valid names."""
    if not (isinstance(value, str) and value in valid):
        raise unknown_name(kind, value, valid)


def find_name(
    kind: str, value: object, valid: Collection[str], *, user_defined: bool = False
) -> str:
    """Return the valid name that `value` spells; case, hyphens, underscores and blanks don't count.

    Raises:
      InputError: it spells none of them, or several; see `unknown_name`.
    """
    matches = find_matches(value, valid, {}) if isinstance(value, str) else []
    if len(matches) != 1:
        raise unknown_name(kind, value, valid, user_defined=user_defined)
    return matches[0]


def require_whole(name: str, value: Any, low: int, high: int | None = None, bits: int = 31) -> int:
    """Return `value` as an integer in low..high, or below 2^bits if `high` is None.

    Booleans and arrays, including scalars, are refused: static values must be hashable.

    Raises:
      InputError: `value` is not such a whole number.
    """
    try:
        other = isinstance(value, bool) or hasattr(value, "__len__")
        number = low - 1 if other else operator.index(value)
    except TypeError:
        number = low - 1
    allowed = f"of at least {low}" if high is None else f"in {low}..{high}"
    inside = number >= low and (high is None or number <= high)
    require(inside, name, value, f"a whole number {allowed}")
    require(number < 2**bits, name, value, f"a whole number below 2^{bits}")
    return number


def require(condition: bool | np.bool_, name: str, value: object, allowed: str) -> None:
    """Raise `InputError` "`name` must be `allowed`, got `value`." unless `condition` holds."""
    if not condition:
        raise refused(name, value, allowed)


def require_hashable(name: str, value: Any) -> None:
    """Raise `InputError` unless a value is hashable, as parts of compiled programs must be."""
    try:
        hash(value)
    except TypeError as error:
        raise InputError(f"{name} must be hashable (tuples for lists): {error}.") from error


def require_classes(what: str, has_classes: bool) -> None:
    """Raise `InputError` if `what` needs classes and the data set has none."""
    if not has_classes:
        raise InputError(f"{what} needs a class for each sample, and this data set's have none.")


def refused(name: str, value: object, allowed: str) -> InputError:
    """Return an `InputError` "`name` must be `allowed`, got `value`."."""
    given = shown(value)
    if isinstance(value, type):
        given = f"the class {value.__name__}: write {value.__name__}(...)"
    return InputError(f"{name} must be {allowed}, got {given}.")


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
