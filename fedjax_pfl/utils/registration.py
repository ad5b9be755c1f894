"""Registries of functions and classes by name: the package's, and those of users' files."""

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from fedjax_pfl.utils.conversions import defined_at
from fedjax_pfl.utils.errors import InputError, require

F = TypeVar("F", bound=Callable[..., Any])
_places: dict[tuple[int, str], tuple[str, str]] = {}  # where a name of a registry was defined


def registering(
    kind: str,
    registry: MutableMapping[str, Any],
    name: str,
    row: Callable[[Any], Any] = lambda function: function,
) -> Callable[[F], F]:
    """Return the decorator that puts a function or class into a registry under a name.

    Args:
      kind: such as "model", for sentences.
      registry: rows by name.
      name: of the new row.
      row: makes the row of what is decorated; by default that itself.

    Raises:
      InputError: the name is no text, or that of something defined elsewhere. What the same module
        defines again, as a notebook does, replaces the row.
    """
    require(isinstance(name, str) and bool(name.strip()), f"name of the {kind}", name, "text")

    def register(function: F) -> F:
        require(callable(function), f"{kind} {name!r}", type(function).__name__, "a function")
        place, key = defined_at(function), (id(registry), name)
        if name in registry and place != (_places.get(key) or defined_at(registry[name])):
            raise InputError(f"The {kind} {name!r} is registered already, by another function.")
        registry[name] = row(function)
        _places[key] = place
        return function

    return register
