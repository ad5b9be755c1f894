"""Declaration of options with their defaults, descriptions and ranges.

A group of options is a subclass of `OptionGroup`, a frozen dataclass whose fields are made by
`option`. Checks, the signature and docstring of `federate`, and flags of commands derive from it.
"""

import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, Self

import numpy as np

from fedjax_pfl.models.model_registry import MODELS, options_of
from fedjax_pfl.utils.conversions import convert, number
from fedjax_pfl.utils.errors import find_name, require, require_whole, unknown_name
from fedjax_pfl.utils.structs import check_needs

WORDS = (str, bool, int, float)  # types that can be written as one word


@dataclass(frozen=True)
class Option:
    """One option of a group.

    Attributes:
      name: keyword.
      default: default value.
      meaning: description, a clause without a capital and a full stop.
      kinds: types of values, except None.
      optional: whether None is allowed.
      choices: allowed names; () for no restriction.
      open: whether users may add names to the choices, which are a registry then.
      low: smallest whole number.
      within: range of other numbers, such as "(0, 1]"; None means at least 0.
      noun: what the number is in error messages, such as "a fraction".
      called: name in error messages, if it differs from `name`.
    """

    name: str
    default: Any
    meaning: str
    kinds: tuple[Any, ...]
    optional: bool
    choices: Collection[str] = ()
    open: bool = False
    low: int = 0
    within: str | None = None
    noun: str = ""
    called: str = ""

    @property
    def kind(self) -> type | None:
        """The type of values that can be written as one word, preferably text, or None."""
        return next((kind for kind in WORDS if kind in self.kinds), None)

    def text(self, choices: Sequence[str] | None = None) -> str:
        """Return the description, with all choices or some of them."""
        *most, last = [repr(name) for name in choices or self.choices] or [""]
        return self.meaning.replace("{choices}", f"{', '.join(most)} or {last}" if most else last)

    def check(self, value: Any) -> Any:
        """Return a checked value.

        Objects, and options of several types, are checked by their group.

        Raises:
          InputError: the value is not allowed.
        """
        if value is None and self.optional:
            return None
        if self.choices and (isinstance(value, str) or self.kinds == (str,)):
            kind = self.called or self.name.replace("_", " ")
            value = find_name(kind, value, self.choices, user_defined=self.open)
        if len(self.kinds) > 1 or self.kind is None:
            return value
        name = self.called or self.name
        if self.kind is bool:
            require(isinstance(value, bool), name, value, "True or False")
        elif self.kind is str:
            require(isinstance(value, str), name, value, "text")
        elif self.kind is int:
            return require_whole(name, value, self.low)
        else:
            return self._number(value)
        return value

    def read(self, text: str) -> Any:
        """Return the checked value of a command-line word.

        Raises:
          InputError: the value is not allowed.
        """
        return self.check(convert(self.name, text, self.kind))

    def _number(self, value: Any) -> float:
        name, within = self.called or self.name, self.within or "[0, inf)"
        low, high = (float(end) for end in within[1:-1].split(","))
        allowed = "at least 0" if self.within is None else f"in {self.within}"
        allowed = f"{self.noun} {allowed}".strip()
        value = number(name, value, allowed, low, high)
        rounded = np.float32(value)  # an open end must be open in the program too
        outside = (within[0] == "(" and rounded <= low) or (within[-1] == ")" and rounded >= high)
        require(not outside, name, value, allowed)
        return value


def option(
    default: Any,
    meaning: str,
    *,
    traced: bool = False,
    needs: str | Sequence[str] = (),
    **more: Any,
) -> Any:
    """Declare a field of a group.

    Args:
      default, meaning: see `Option`.
      traced: whether the value is traced, in a group that is a `struct`; otherwise it is static.
      needs: options of the group without which this one has no effect, see `structs.check_needs`.
      **more: other attributes of the `Option`.
    """
    metadata = {"option": {"meaning": meaning, **more}, "static": not traced, "needs": needs}
    return field(default=default, metadata=metadata)


def shared_option(group: type, name: str) -> Any:
    """Return a field for an option that another group declares."""
    (one,) = (one for one in fields(group) if one.name == name)
    return field(default=one.default, metadata=one.metadata)


@cache
def declared(group: type) -> dict[str, Option]:
    """Return the options of a group by name, in its order."""
    hints, result = typing.get_type_hints(group), {}
    for one in fields(group):
        if "option" in one.metadata:
            hint = hints[one.name]
            union = typing.get_origin(hint) in (typing.Union, types.UnionType)
            kinds = typing.get_args(hint) if union else (hint,)
            result[one.name] = Option(
                name=one.name,
                default=one.default,
                kinds=tuple(kind for kind in kinds if kind is not type(None)),
                optional=type(None) in kinds,
                **one.metadata["option"],
            )
    return result


@dataclass(frozen=True)
class OptionGroup:
    """Base class of groups of options; each builds its part of a federation."""

    def validate(self) -> None:
        """Raise `InputError` for checked values that do not go together."""

    def checked(self) -> Self:
        """Return the group with checked values.

        Raises:
          InputError: a value that is not allowed, has no effect, or does not go with others.
        """
        options = declared(type(self)).items()
        made = replace(self, **{name: one.check(getattr(self, name)) for name, one in options})
        check_needs(made)
        made.validate()
        return made


def gathered(
    groups: Sequence[type[OptionGroup]], values: Mapping[str, Any], taker: str
) -> dict[type[OptionGroup], Any]:
    """Return each group, with the options that belong to it, checked, by its class.

    Args:
      groups: classes of the groups.
      values: values by name.
      taker: the function that accepts them, for error messages.

    Raises:
      InputError: no group has an option of that name, or a value is not allowed.
    """
    known = {name: group for group in groups for name in declared(group)}
    for name in values:
        if name not in known:
            own = "model_options" in known and any(name in options_of(model) for model in MODELS)
            hint = f"Is it an entry of model_options={{{name!r}: VALUE}}?" if own else None
            raise unknown_name(f"option of {taker}", name, known, hint=hint)
    return {
        group: group(
            **{name: value for name, value in values.items() if known[name] is group}
        ).checked()
        for group in groups
    }


def documented(*groups: type[OptionGroup]) -> Callable[..., Any]:
    """Return a decorator that expands `**options` in a function's signature and docstring."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(fn)
        *parameters, _ = signature.parameters.values()
        messages = []
        for group in groups:
            hints = typing.get_type_hints(group)
            for name, one in declared(group).items():
                keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
                parameters.append(keyword.replace(default=one.default, annotation=hints[name]))
                messages.append(f"{name}: {one.text()}.")

        def lines(mark: re.Match) -> str:
            first, more = mark[1], mark[1] + "  "
            wrap = partial(textwrap.fill, initial_indent=first, subsequent_indent=more)
            return "\n".join(wrap(text, 100) for text in messages)

        fn.__signature__ = signature.replace(parameters=parameters)
        fn.__doc__ = re.sub(r"^( *)\*\*options: .*$", lines, fn.__doc__ or "", flags=re.MULTILINE)
        return fn

    return decorate
