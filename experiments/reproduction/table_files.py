"""Dataclasses from a TOML file, with checks of keys and types."""

import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from fedjax_pfl.utils.errors import InputError, shown

KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
Need = Callable[[bool, str], None]


def needs(path: Path) -> Need:
    """Return a function that raises an `InputError` on the file unless its condition holds."""

    def need(condition: bool, text: str) -> None:
        if not condition:
            raise InputError(f"{path}: {text}.")

    return need


def read(kind: type, path: Path, **more: Any) -> Any:
    """Read an instance of the dataclass `kind` from a file; `more` are further fields.

    Raises:
      InputError: it can't be read, or a part has the wrong keys or values.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read as a table: {error}.") from error
    return _made(kind, content | more, "the file", needs(path))


def _made(kind: type, content: object, what: str, need: Need) -> Any:
    need(isinstance(content, Mapping), f"{what} must be a table of keys, got {shown(content)}")
    entries = typing.cast(Mapping[str, Any], content)
    known = {one.name: one for one in fields(kind)}
    for name in sorted(entries.keys() - known.keys()):
        need(False, f"{what} has an unknown key {name!r}")
    for name, one in known.items():
        required = one.default is MISSING and one.default_factory is MISSING
        need(name in entries or not required, f"{what} needs {name!r}")
    hints = typing.get_type_hints(kind)
    return kind(**{
        name: _value(value, hints[name], name, f" of {what}" * (what != "the file"), need)
        for name, value in entries.items()
    })  # fmt: skip


def _value(value: object, hint: Any, name: str, place: str, need: Need) -> Any:
    """Convert a field's value: nested parts to dataclasses, lists to tuples."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if is_dataclass(kind):
        return _made(typing.cast(type, kind), value, f"{name}{place}", need)
    if kind is tuple:
        need(isinstance(value, list), f"{name}{place} must be a list, got {shown(value)}")
        parts = enumerate(typing.cast(list, value), start=1)
        return tuple(_value(one, inner[0], f"{name} {k}", place, need) for k, one in parts)
    if kind is Mapping:
        need(isinstance(value, Mapping), f"{name}{place} must be a table, got {shown(value)}")
        parts = typing.cast(Mapping, value).items()
        return {key: _value(one, inner[1], f"{name} {key!r}", place, need) for key, one in parts}
    allowed = typing.get_args(hint) if kind is UnionType else (kind,)
    optional = [one for one in allowed if typing.get_origin(one) is tuple]
    if optional and isinstance(value, list):
        return _value(value, optional[0], name, place, need)
    fits = any(_is(value, one) for one in allowed)
    text = " or ".join(KINDS.get(one, "a list") for one in allowed if one is not NoneType)
    need(fits, f"{name}{place} must be {text}, got {shown(value)}")
    return value


def _is(value: object, kind: Any) -> bool:
    if typing.get_origin(kind) or kind is NoneType:
        return False
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)
