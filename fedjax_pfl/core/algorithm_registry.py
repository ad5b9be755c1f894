"""Registry of algorithms, and lookup of algorithms and hyperparameters by name."""

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar, dataclass_transform

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.federation.local_training import SETTABLE
from fedjax_pfl.utils import aliases, name_matching
from fedjax_pfl.utils.boundary import checked, name_arguments
from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import (
    InputError,
    require,
    shown,
    unknown_hyperparameter,
    unknown_name,
)
from fedjax_pfl.utils.registries import registering
from fedjax_pfl.utils.structs import check_needs, check_ranges, number, static, struct

ALGORITHMS: dict[str, type[Algorithm]] = {}
A = TypeVar("A", bound=Algorithm)


@name_arguments  # outermost, as type checkers read dataclass_transform next to the function only
@dataclass_transform(frozen_default=True, field_specifiers=(static, number))
def algorithm(name: str) -> Callable[[type[A]], type[A]]:
    """Return a decorator that registers a subclass of `Algorithm` and makes it a struct.

    Args:
      name: canonical name.

    Raises:
      InputError: the name is taken, or the class is not an algorithm, has a hyperparameter without
        a type annotation, or one with the name of an option of local training.
    """

    allowed = "text, as in @core.algorithm('its_name')"
    require(isinstance(name, str), "name", getattr(name, "__name__", name), allowed)

    def register(cls: type[A]) -> type[A]:
        if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
            raise InputError(
                f"Algorithm {name!r} must be a subclass of Algorithm, got {shown(cls)}."
            )
        constants = {key for base in cls.__mro__[1:] for key in inspect.get_annotations(base)}
        constants -= {key for base in cls.__mro__[1:] if is_dataclass(base) for key in _names(base)}
        for key, value in vars(cls).items():
            typed = key in inspect.get_annotations(cls) or key in constants
            if isinstance(value, bool | int | float | str) and not (typed or key.startswith("_")):
                raise InputError(
                    f"Algorithm {name!r} gives {key} = {shown(value)} no type: a hyperparameter "
                    "reads "
                    f"{key}: {type(value).__name__} = {shown(value)}, a constant of the class "
                    f"{key}: ClassVar = {shown(value)}."
                )
        cls = struct(cls)
        for key in filter(SETTABLE.__contains__, _names(cls)):
            raise InputError(
                f"Algorithm {name!r} can't call a hyperparameter {key!r}: that is an option of "
                f"local training, which every algorithm has. Rename it, to own_{key} for instance."
            )
        cls.name = name
        cls.__init__ = name_arguments(cls.__init__, partial(_unknown, name))
        return registering("algorithm", ALGORITHMS, name)(cls)

    return register


def _names(cls: Any) -> set[str]:
    return {field.name for field in fields(cls)}


def is_static(field: Field[Any]) -> bool:
    """Return whether a hyperparameter is part of the program, so it can't be swept within one."""
    return bool(field.metadata.get("static"))


def algorithm_name(
    name: object, among: Collection[str] | None = None, kind: str = "algorithm"
) -> str:
    """Return the canonical name of an algorithm, given any spelling or another library's name.

    "FedAvg-FT" and "FedFT" are both "fedavg_ft". Case, hyphens, underscores, blanks, dots and
    parentheses are ignored; an exact match takes precedence.

    Args:
      name: the name.
      among: candidates; by default all registered algorithms.
      kind: what is named, for error messages.

    Raises:
      InputError: the name matches no candidate, or several.
    """
    among = ALGORITHMS if among is None else among
    if not isinstance(name, str):
        raise unknown_name(kind, name, among)
    matches, word = (
        name_matching.find_matches(name, among, aliases.ALGORITHMS),
        name_matching.normalized(name),
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"The {kind} {shown(name)} may be any of {', '.join(matches)}: name one.")
    own, key, value = aliases.VARIANTS.get(word, ("", "", ""))
    near = name_matching.nearest(name, among, name_matching.SHARED)
    if own in among:
        hint = f"It is {own!r} with {own}.{key}={value}."
    elif word in aliases.ABSENT or word in aliases.ALGORITHMS:
        why = aliases.REASONS.get(word, "It is not in this version.")
        hint = why if among is ALGORITHMS else ""
    else:
        hint = f"Did you mean {near!r}?" if near else ""
    own = among is ALGORITHMS and word not in aliases.ABSENT
    raise unknown_name(kind, name, among, hint=hint, user_defined=own)


def _unknown(name: str, key: str) -> InputError:
    """Return the error for an unknown hyperparameter of an algorithm."""
    known = _names(ALGORITHMS[name])
    if ours := name_matching.find_matches(str(key), SETTABLE, aliases.OPTIONS):
        return InputError(
            f"Unknown hyperparameter of {name!r} {key!r}. {ours[0]} is an option of local "
            f"training: pfl.federate(..., {ours[0]}=VALUE), or --{ours[0]}=VALUE."
        )
    if not known:
        return InputError(f"Algorithm {name!r} has no hyperparameters, got {key!r}.")
    return unknown_hyperparameter(name, key, known)


def validate(algorithm: Algorithm) -> None:
    """Raise `InputError` for hyperparameters out of range, without effect, or in contradiction."""
    check_ranges(algorithm)
    check_needs(algorithm)
    algorithm.validate()


@checked
def make_algorithm(name: str, hyperparameters: Mapping[str, Any] | None = None) -> Algorithm:
    """Make a registered algorithm and validate its hyperparameters.

    Args:
      name: name of the algorithm, in any spelling that `algorithm_name` accepts.
      hyperparameters: values by name; strings are converted to the field's type.

    Raises:
      InputError: unknown algorithm or hyperparameter, a value of the wrong type or out of range.
    """
    name = algorithm_name(name)
    cls = ALGORITHMS[name]
    known = {field.name: field for field in fields(cls)}
    values = {}
    for key, value in (hyperparameters or {}).items():
        if key not in known:
            raise _unknown(name, key)
        values[key] = convert(f"{name}.{key}", value, typing.get_type_hints(cls)[key])
    algorithm = cls(**values)
    try:
        validate(algorithm)
    except InputError as error:
        if str(error).partition(" ")[0] in known:  # several algorithms may have the name
            raise InputError(f"{name}.{error}") from None
        raise
    return algorithm
