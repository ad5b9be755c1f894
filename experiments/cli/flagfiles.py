"""Reads flagfiles safely: they may come from strangers."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path, read_bytes, require_file
from fedjax_pfl.utils import name_matching

from . import presets

LARGEST_FLAGFILE = 2**20
MOST_FLAGFILES = 1000
PRESET = re.compile(r"--?preset(=|\s*\Z)")
SWEPT = re.compile(r"--?settings_from(=|\s*\Z)")
PAIRS = r"--?(?:set|grid|\w+_option)"  # flags of pairs NAME=VALUE
SETTINGS = "settings.flags"  # of a sweep: all flags of a run with what it chose
CONFLICT = "can't differ between the algorithms of a run"  # in it, of a flag that was left out
# Flags that a sweep doesn't hand on: places of its own, and code, which the command line names.
OWN_PLACES = ("output_dir", "import_file", "trust_flagfiles", "preset", "settings_from")
OWN_PLACES += ("compilation_cache",)


def value_of(values: flags.FlagValues, name: str) -> Any:
    """The value of the flag of that name, of the type that its own parser makes."""
    return values[name].value


class _Line(str):
    """A word of a flagfile, and which file that is."""

    file: str

    def __new__(cls, text: str, file: str):
        line = super().__new__(cls, text)
        line.file = file
        return line


def _last_pairs(words: Sequence[str]) -> list[str]:
    """The words without pairs NAME=VALUE of a flagfile that come again behind it, as of flags.

    Two values from one file, or both from the command line, stay: they are a mistake.
    """
    kept, later = [], {}
    for i in reversed(range(len(words))):
        word = words[i]
        bare = re.fullmatch(PAIRS, word) and i + 1 < len(words)  # its value is the next word
        said = re.match(rf"({PAIRS})=([^=]+)=", f"{word}={words[i + 1]}" if bare else word)
        file = getattr(word, "file", None)
        if said is not None:
            target = said[1].lstrip("-"), name_matching.plain(said[2])
            if later.setdefault(target, file) != file and file is not None:
                del kept[len(kept) - bool(bare) :]
                continue
        kept.append(word)
    return kept[::-1]


class FlagValues(flags.FlagValues):
    """Flag values that read flagfiles only where those are small regular files of text.

    `--preset=NAME` is this package's flagfile of that name, `--settings_from=DIR` that of a sweep.
    """

    def __init__(self):
        super().__init__()
        meaning = "flags of a preset, by name (--list shows them)"
        place = {"flag_values": self, "module_name": "flagfiles"}
        flags.DEFINE_string("preset", None, meaning, **place)  # suggested for misspelt flags
        meaning = "folder of a finished sweep: its flags, with each algorithm's chosen settings"
        flags.DEFINE_string("settings_from", None, meaning, **place)

    def read_flags_from_files(self, argv, force_gnu=True):
        joined, words = [], iter(argv)
        for word in words:
            if re.fullmatch("--?(preset|settings_from)", word):  # its value is the next word
                word = f"--{word.lstrip('-')}={next(words, '')}"
            joined.append(word)
        words = _last_pairs(super().read_flags_from_files(joined, force_gnu))
        self.__dict__["__words"] = words
        return words

    def _is_flag_file_directive(self, flag_string):
        ours = PRESET.match(flag_string) or SWEPT.match(flag_string)
        return bool(ours) or super()._is_flag_file_directive(flag_string)

    def _extract_filename(self, flagfile_str):
        if PRESET.match(flagfile_str):
            return str(presets.file(flagfile_str.partition("=")[2].strip()))
        if SWEPT.match(flagfile_str):
            return str(settings_of(flagfile_str.partition("=")[2].strip()))
        return super()._extract_filename(flagfile_str)

    def _get_flag_file_lines(self, filename, parsed_file_stack=None):
        path = as_path("--flagfile", filename)
        if os.path.exists(path):
            read = self.__dict__.get("__flagfiles_read", 0) + 1
            self.__dict__["__flagfiles_read"] = read
            if read > MOST_FLAGFILES:
                raise pfl.InputError(f"More than {MOST_FLAGFILES} flagfiles include one another.")
            size = require_file(path)
            if size > LARGEST_FLAGFILE:
                raise pfl.InputError(f"--flagfile={path} has {size:,} bytes: it is no flagfile.")
            try:
                text = read_bytes(path).decode()
            except UnicodeDecodeError as error:
                raise pfl.InputError(f"--flagfile={path} is no UTF-8 text: {error}.") from None
            if "\0" in text:
                raise pfl.InputError(f"--flagfile={path} holds NUL: it is no text.")
        lines = super()._get_flag_file_lines(filename, parsed_file_stack)
        return [line if isinstance(line, _Line) else _Line(line, filename) for line in lines]


def settings_of(folder: str) -> Path:
    """The flagfile of a finished sweep.

    Raises:
      InputError: no such sweep, or its algorithms' choices don't fit into one run.
    """
    place = as_path("--settings_from", folder)
    path = place / SETTINGS
    if not path.is_file():
        raise pfl.InputError(
            f"--settings_from takes the folder of a finished sweep, and {place} has no {SETTINGS}."
        )
    text = read_bytes(path).decode(errors="replace")
    apart = re.findall(rf"^# (\S+) {CONFLICT}", text, re.MULTILINE)
    if apart:
        raise pfl.InputError(
            f"The algorithms of {place} chose different values of {', '.join(apart)}, which "
            f"{CONFLICT}: give --flagfile={path} and a value of your own for it."
        )
    return path


def given_words(values: flags.FlagValues) -> list[str]:
    """The flags that were given, as words of a flagfile; without `OWN_PLACES`."""
    words = []
    for name in values:
        flag = values[name]
        if flag.present and name == flag.name and name not in (*OWN_PLACES, "flagfile"):
            words += flag.serialize().splitlines()
    return words


def filed(values: flags.FlagValues) -> set[str]:
    """Names of the flags that flagfiles gave and the command line itself did not."""
    origins: dict[str, bool] = {}
    for word in values.__dict__.get("__words", ()):
        said = re.match(r"--?(\w+)", word)
        if said is not None:
            name = said[1] if said[1] in values else said[1].removeprefix("no")
            origins[name] = origins.get(name, True) and hasattr(word, "file")
    return {name for name, only in origins.items() if only and name in values}


def filed_pairs(values: flags.FlagValues, name: str) -> set[str]:
    """The words NAME=VALUE of a flag of pairs that flagfiles gave, such as presets."""
    words, result = values.__dict__.get("__words", ()), set()
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.lstrip("-").partition("=")
        if flag == name and hasattr(word, "file"):
            result.add(value if equals else following)
    return result


def check_trust(argv: Sequence[str]) -> None:
    """Raises `InputError` where a flagfile, perhaps a stranger's, gives a flag that runs code.

    Only the command line itself can give --trust_flagfiles.
    """
    own, words = [], iter(argv[1:])
    for word in words:
        if re.fullmatch("--?(flagfile|preset|settings_from)", word):
            next(words, None)
        elif not re.match("--?(flagfile|preset|settings_from)=", word):
            own.append(word)
    said = [re.fullmatch("--?(no)?trust_flagfiles(=true|=1)?", word) for word in own]
    said = [match[1] is None for match in said if match]
    if said and all(said):
        return
    every = FlagValues().read_flags_from_files(list(argv[1:]), force_gnu=False)
    given, ours = ([w for w in some if runs_code(w)] for some in (every, own))
    if len(given) > len(ours):
        word = next((word for word in given if word not in ours), given[0])
        raise pfl.InputError(
            f"A --flagfile has {word}, and the code of such a file would run: give the flag on the "
            "command line, or --trust_flagfiles there."
        )


def runs_code(word: str) -> bool:
    """Whether a word of a command line makes a file's code run.

    A compilation cache holds machine code, which JAX loads as it is.
    """
    code = r"--?((import_file|trust_flagfiles)(=|\Z)|compilation_cache(=.|\Z))"
    return bool(re.match(code, word))
