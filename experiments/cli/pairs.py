"""Flags whose words read NAME=VALUE."""

import contextlib
from collections.abc import Collection

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import shown

from .flagfiles import value_of


def name_and_value(flag: str, word: str) -> tuple[str, str]:
    """The parts of a flag's word such as "hidden=128"."""
    name, equals, value = (part.strip() for part in word.partition("="))
    if not (equals and name and value):
        raise pfl.InputError(f"--{flag} must read NAME=VALUE, got {shown(word)}.")
    return name, value


def parse_pairs(
    args: absl.flags.FlagValues, flag: str, texts: Collection[str] = ()
) -> dict[str, int | float | str]:
    """Options from words such as "hidden=128"; words that look like numbers become numbers.

    Options named in `texts` stay text: a column may be called "1". The same word may come again,
    from a preset or the flags of a sweep.
    """
    options, words = {}, {}
    for word in value_of(args, flag):
        name, text = name_and_value(flag, word)
        if words.setdefault(name, text) != text:
            raise pfl.InputError(
                f"--{flag} gives {name} twice: {shown(words[name])} and {shown(text)}."
            )
        options[name] = text
        for kind in () if name in texts else (float, int):
            with contextlib.suppress(ValueError):  # Python reads no integers of 4,301 digits
                options[name] = kind(text)
        if isinstance(options[name], int | float):
            convert(f"{name} in --{flag}", text, type(options[name]))
    return options
