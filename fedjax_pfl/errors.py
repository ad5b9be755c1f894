"""One kind of error for everything a user can get wrong, worded in one place."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A value the user gave can't be used; the message says what was given and what is allowed."""


def unknown_name(kind: str, given: str, valid: Iterable[str]) -> InputError:
    """An `InputError` for a misspelt name: lists the valid ones and the nearest.

    Args:
      kind: what the name stands for, in the singular, such as "method" or "data set".
      given: the name as the user wrote it.
      valid: every name that would have been accepted.
    """
    valid = sorted(valid)
    near = difflib.get_close_matches(str(given), valid, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"Unknown {kind} {given!r}.{hint} Valid: {', '.join(valid)}.")


def require_whole(name: str, given, low: int) -> None:
    """Raises `InputError` unless `given` is a whole number (no bool) of at least `low`."""
    whole = hasattr(given, "__index__") and not isinstance(given, bool)
    fits = whole and low <= given < 2**31
    require(fits, name, given, f"a whole number of at least {low}")


def require(condition: bool, name: str, given, allowed: str) -> None:
    """Raises `InputError` unless `condition` holds: "`name` must be `allowed`, got `given`."."""
    if not condition:
        raise InputError(f"{name} must be {allowed}, got {given!r}.")
