"""Registries of functions and classes by name, those of users' files among them."""

import inspect
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedjax_pfl.utils.conversions import convert, defined_at
from fedjax_pfl.utils.errors import InputError, find_name, require, shown, unknown_name

F = TypeVar("F", bound=Callable[..., Any])
Registry = dict[str, Callable[..., Any]]
_places: dict[tuple[int, str], tuple[str, str]] = {}  # where a name of a registry was defined


def registering(
    kind: str,
    registry: MutableMapping[str, Any],
    name: str,
    entry: Callable[[Any], Any] = lambda function: function,
) -> Callable[[F], F]:
    """Return a decorator that adds a function or class to a registry under a name.

    Args:
      kind: such as "model", for error messages.
      registry: entries by name.
      name: of the new entry.
      entry: makes the entry from the decorated object; by default the object itself.

    Raises:
      InputError: `name` is not text, or is the name of an object that is defined elsewhere. A
        definition that its module repeats, as a notebook does, replaces the entry.
    """
    require(isinstance(name, str) and bool(name.strip()), f"name of the {kind}", name, "text")

    def register(function: F) -> F:
        require(callable(function), f"{kind} {name!r}", type(function).__name__, "a function")
        place, key = defined_at(function), (id(registry), name)
        if name in registry and place != (_places.get(key) or defined_at(registry[name])):
            raise InputError(f"The {kind} {name!r} is registered already, by another function.")
        registry[name] = entry(function)
        _places[key] = place
        return function

    return register


@dataclass(frozen=True)
class Configured:
    """A registered function with options; hashable, so that it can be static.

    Attributes:
      name: name in the registry.
      function: called with the options as keywords.
      options: names and values of options.
    """

    name: str
    function: Callable[..., Any] = field(repr=False)
    options: tuple[tuple[str, bool | int | float], ...] = ()

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **dict(self.options))

    def __str__(self) -> str:
        text = ", ".join(f"{name} {value:g}" for name, value in self.options)
        return f"{self.name} ({text})" if text else self.name


def options_of(function: Callable[..., Any]) -> dict[str, bool | int | float]:
    """Return a function's options: parameters whose default is a number or a boolean."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if isinstance(p.default, bool | int | float)}


def configured(kind: str, registry: Registry, name: str, options: Mapping[str, Any]) -> Configured:
    """Return a registered function with options, converted to the types of their defaults.

    Args:
      kind: kind of the function, for error messages.
      registry: functions by name.
      name: name of the function.
      options: values by name.

    Raises:
      InputError: unknown name or option, or a value of another type.
    """
    name = find_name(kind, name, registry, user_defined=True)
    own, converted = options_of(registry[name]), {}
    for option, value in options.items():
        if not own:
            raise InputError(f"The {kind} {name!r} has no options, got {shown(option)}.")
        if option not in own:
            raise unknown_name(f"option of the {kind} {name!r}", option, own)
        converted[option] = convert(f"{option} of the {kind} {name!r}", value, type(own[option]))
    return Configured(name, registry[name], tuple(sorted(converted.items())))


def checked_options(name: str, options: Any, function: Any) -> dict[str, Any]:
    """Return options of a named function as a dict; {} for None.

    Args:
      name: name of the argument, for error messages.
      options: the options.
      function: the function or its name.

    Raises:
      InputError: the options are not a dict with text keys, or `function` is not a name.
    """
    fits = options is None or isinstance(options, Mapping)
    fits = fits and all(isinstance(key, str) for key in options or ())
    require(fits, name, type(options).__name__, "a dict such as {'b1': 0.8}, with text for keys")
    allowed = "absent where a function is given, which has its own"
    require(isinstance(function, str) or not options, name, options, allowed)
    return dict(options or {})
