"""Flags of a command by groups, with numbers in the ranges that programs hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import output_exists
from fedjax_pfl.data.files import as_path
from fedjax_pfl.utils.conversions import LIMIT, convert
from fedjax_pfl.utils.errors import refused, shown


class Integers(flags.IntegerParser):
    """Integers of a flag, by default of int32."""

    def __init__(self, name: str, low: int, high: int = LIMIT - 1):
        super().__init__(low, high)
        self.name, self.allowed = name, f"a whole number of at least {low} and below {high + 1:,}"
        if high == LIMIT - 1:
            self.syntactic_help = f"an integer of at least {low}"

    def parse(self, argument: str) -> int:
        try:
            return super().parse(argument)
        except (ValueError, TypeError):
            raise refused(f"--{self.name}", argument, self.allowed) from None


class Number(flags.FloatParser):
    """Numbers of a flag in float32's range, without NaN (which passes bounds) and infinity."""

    def __init__(self, name: str, *bounds: float):
        super().__init__(*bounds)
        sides = zip(("at least", "at most"), bounds, strict=False)
        limits = " and ".join(f"of {side} {bound:g}" for side, bound in sides)
        self.name, self.allowed = name, f"a number {limits}".strip()

    def parse(self, argument: str) -> float:
        value = convert(f"--{self.name}", argument, float)
        if self.is_outside_bounds(value):
            raise refused(f"--{self.name}", argument, self.allowed)
        return value


class Group:
    """Defines flags that --help lists under one heading; a default of None means "not given"."""

    def __init__(self, values: flags.FlagValues, name: str):
        self.values, self.place = values, {"flag_values": values, "module_name": name}

    def text(self, name: str, default: str | None, meaning: str) -> None:
        flags.DEFINE_string(name, default, meaning, **self.place)
        self._hide_empty(name)

    def names(self, name: str, default: Sequence[str] | None, meaning: str) -> None:
        flags.DEFINE_list(name, default, meaning, **self.place)
        self._hide_empty(name)

    def pairs(self, name: str, meaning: str) -> None:
        flags.DEFINE_multi_string(name, [], meaning, **self.place)
        self._hide_empty(name)

    def help(self) -> None:
        self.switch("help", False, "print this and exit", short_name="h")

    def _hide_empty(self, name: str) -> None:
        """Omit an empty default from --help: the meaning says what applies without the flag."""
        if not self.values[name].default:
            self.values[name].default_as_str = None

    def integer(
        self, name: str, default: int | None, meaning: str, low: int, high: int = LIMIT - 1
    ) -> None:
        self._number(Integers(name, low, high), default, meaning)

    def number(self, name: str, default: float | None, meaning: str, *bounds: float) -> None:
        self._number(Number(name, *bounds), default, meaning)

    def _number(self, parser: Integers | Number, default: float | None, meaning: str) -> None:
        serializer = flags.ArgumentSerializer()
        flags.DEFINE(parser, parser.name, default, meaning, serializer=serializer, **self.place)

    def switch(self, name: str, default: bool | None, meaning: str, **options: Any) -> None:
        flags.DEFINE_boolean(name, default, meaning, **self.place, **options)


def new_path(
    flag: str,
    text: str | None,
    endings: Sequence[str] = (),
    remedy: str | None = " and nothing is ever overwritten",
    in_folder: bool = False,
) -> Path | None:
    """Return the path of an output flag, or None.

    Args:
      endings: of which it has one.
      remedy: the end of the sentence on a path that exists; None allows it.
      in_folder: whether its folder has to exist.

    Raises:
      InputError: it exists, has another ending, or can't be written.
    """
    if text is None:
        return None
    path = as_path(f"--{flag}", text)
    if endings and path.suffix.lower() not in endings:
        raise pfl.InputError(f"--{flag} must end in {' or '.join(endings)}, got {shown(text)}.")
    if output_exists(flag, path) and remedy is not None:
        raise pfl.InputError(f"{path} exists already{remedy}.")
    if in_folder and not path.parent.is_dir():
        raise pfl.InputError(f"--{flag}={text}: no folder {path.parent} to write to.")
    return path
