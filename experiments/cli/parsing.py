"""Command lines, read by absl: flagfiles, presets, and one sentence for whatever is refused."""

import codecs
import contextlib
import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from absl import flags

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path, read_bytes, require_file
from fedjax_pfl.utils import name_matching
from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import cut, refused, shown

from . import plugins, presets, unknown_flags
from .start import called

LARGEST_FLAGFILE = 2**20  # bytes
MOST_FLAGFILES = 1000
FILES = ("flagfile", "preset", "settings_from")  # flags that stand for the flags of a file
SETTINGS = "settings.flags"  # of a sweep: all flags of a run with its choices
CONFLICT = "can't differ between the algorithms of a run"  # in it, of a flag that was left out
# Flags that run a file's code: JAX loads the machine code of a compilation cache as it is.
CODE = re.compile(r"--?((import_file|trust_flagfiles)(=|\Z)|compilation_cache(=.|\Z))")


def value_of(values: flags.FlagValues, name: str) -> Any:
    """Return the value of a flag, of the type that its own parser returns."""
    return values[name].value


class FlagValues(flags.FlagValues):
    """absl's flag values, with bounds on the flagfiles that they read.

    `--preset=NAME` is the flagfile of that name in this package, `--settings_from=DIR` that of a
    finished sweep.
    """

    def __init__(self):
        super().__init__()
        self.__dict__["read"] = 0
        place = {"flag_values": self, "module_name": "flagfiles"}
        meaning = "read the flags of a preset (--list shows them)"
        flags.DEFINE_string("preset", None, meaning, **place)
        meaning = "run the algorithms of a finished sweep's folder, each with its chosen settings"
        flags.DEFINE_string("settings_from", None, meaning, **place)

    def read_flags_from_files(self, argv, force_gnu=True):
        self.__dict__["read"] = 0
        joined, words = [], iter(argv)
        for word in words:
            if word.startswith("-") and word.lstrip("-") in FILES[1:]:  # its value is the next word
                word = f"{word}={next(words, '')}"
            joined.append(word)
        return super().read_flags_from_files(joined, force_gnu)

    def _is_flag_file_directive(self, flag_string):
        directive = re.fullmatch(r"--?(preset|settings_from)(=.*|\s*)", flag_string, re.DOTALL)
        return bool(directive) or super()._is_flag_file_directive(flag_string)

    def _extract_filename(self, flagfile_str):
        name, _, value = flagfile_str.strip().lstrip("-").partition("=")
        if name == "preset":
            if value.strip() in presets.studies() and "setting" not in self:
                raise pfl.InputError(f"{value.strip()} is a preset of {called('study')}.")
            return str(presets.file(value.strip()))
        if name == "settings_from":
            return str(settings_of(value.strip()))
        return super()._extract_filename(flagfile_str)

    def _get_flag_file_lines(self, filename, parsed_file_stack=None):
        path = as_path("--flagfile", filename)
        self.__dict__["read"] += 1
        if self.__dict__["read"] > MOST_FLAGFILES:
            raise pfl.InputError(f"More than {MOST_FLAGFILES} flagfiles include one another.")
        if os.path.exists(path) and (size := require_file(path)) > LARGEST_FLAGFILE:
            raise pfl.InputError(f"--flagfile={path} has {size:,} bytes: it is not a flagfile.")
        if filename in (parsed_file_stack or ()):
            raise pfl.InputError(f"--flagfile={path} includes itself: take that line out.")
        if path.is_file() and read_bytes(path).startswith(codecs.BOM_UTF8):
            raise pfl.InputError(
                f"--flagfile={path} begins with a byte order mark: save it as UTF-8 without one."
            )
        try:
            return super()._get_flag_file_lines(filename, parsed_file_stack)
        except UnicodeDecodeError as error:
            raise pfl.InputError(f"--flagfile={path} is not UTF-8 text: {error}.") from None
        except flags.CantOpenFlagFileError as error:
            why = getattr(error.__context__, "strerror", None) or error
            raise pfl.InputError(f"--flagfile={path} can't be read: {why}.") from None


def settings_of(folder: str) -> Path:
    """Return the flagfile of a finished sweep.

    Raises:
      InputError: there is no such sweep, or its algorithms' choices don't fit into one run.
    """
    place = as_path("--settings_from", folder)
    path = place / SETTINGS
    if not path.is_file():
        raise pfl.InputError(
            f"--settings_from takes the folder of a finished sweep, and {place} has no {SETTINGS}."
        )
    text = read_bytes(path).decode(errors="replace")
    conflicts = re.findall(rf"^# (\S+) {CONFLICT}", text, re.MULTILINE)
    if conflicts:
        raise pfl.InputError(
            f"The algorithms of {place} chose different values of {', '.join(conflicts)}, which "
            f"{CONFLICT}: give --flagfile={path} and a value of your own for it."
        )
    return path


def runs_code(word: str) -> bool:
    """Return whether a word of a command line causes a file's code to run."""
    return bool(CODE.match(word))


def parse_words(
    values: flags.FlagValues, argv: Sequence[str], positional: int | None = 0
) -> tuple[list[str], dict[str, Any]]:
    """Parse a command line into `values` and import the files of --import_file.

    Args:
      values: the flags of a command; changed in place.
      argv: the words of the command, the program's name first.
      positional: how many words may be no flags; None also passes unknown flags on.

    Returns:
      (words that are not flags, values of the flags that the command line itself has, without those
      that came only from flagfiles).

    Raises:
      InputError: a flagfile that can't be read or would run code, a value out of its flag's range,
        or a file of the user's own that does not run.
      absl.flags.Error: unknown flags, with the nearest of ours; an invalid value.
    """
    own = _without_files(argv)
    try:
        values(own, known_only=positional is None)
        typed = {name: values[name].value for name in values if values[name].present}
        every = values.read_flags_from_files(list(argv[1:]), force_gnu=False)
        if not typed.get("trust_flagfiles"):  # which only the command line itself may give
            _check_no_code(own, every)
        values.unparse_flags()
        rest = values(list(argv), known_only=positional is None)[1:]
    except flags.UnrecognizedFlagError as error:
        raise flags.Error(_short(unknown_flags.answer(argv, error.flagname, values))) from None
    except RecursionError as error:  # of absl's search for a near name
        raise pfl.InputError("No flag has a name that long: --help shows them.") from error
    except flags.IllegalFlagValueError as error:
        if isinstance(error.__context__, pfl.InputError):
            raise error.__context__ from None
        match = re.match(r"flag --(\w+)=(.*?): ", str(error), re.DOTALL)
        if match is not None and isinstance(values[match[1]].parser, flags.BooleanParser):
            raise refused(f"--{match[1]}", match[2], "true or false") from None
        raise flags.Error(_short(str(error))) from None
    except flags.Error as error:
        raise flags.Error(_short(str(error))) from None
    if positional is not None and len(rest) > positional:
        word = rest[positional]
        name = word.partition("=")[0].rpartition(".")[2]  # such as method=fedavg, common.lr=0.1
        joined = next((one for one in ("runs", "algorithms") if one in values), None)
        hint = f"A list has commas and no blanks: --{joined}=A,B." if joined else ""
        hint = unknown_flags.hint(name, list(values)) if "=" in word else hint
        raise flags.Error(f"{word!r} is not a flag: write --NAME=VALUE. {hint}".strip())
    if "import_file" in values:
        plugins.load(value_of(values, "import_file"))
    return rest, typed


def _without_files(argv: Sequence[str]) -> list[str]:
    """Return the words of a command line without flagfiles."""
    result, words = [], iter(argv)
    for word in words:
        name, equals, _ = word.lstrip("-").partition("=")
        if not (word.startswith("-") and name in FILES):
            result.append(word)
        elif not equals:
            next(words, None)
    return result


def _check_no_code(own: Sequence[str], every: Sequence[str]) -> None:
    """Raise `InputError` if a flagfile, perhaps a stranger's, has a flag that runs code.

    Args:
      own, every: words of the command line without those of flagfiles, and with them.
    """
    foreign = [word for word in Counter(every) - Counter(own) if runs_code(word)]
    if foreign:
        raise pfl.InputError(
            f"A --flagfile has {foreign[0]}, and the code of such a file would run: give the flag "
            "on the command line, or --trust_flagfiles there."
        )


def _short(message: str) -> str:
    """Remove words of more than 80 characters from a message."""
    return re.sub(r"\S{80,}", lambda word: cut(word[0], 60), message)


def name_and_value(flag: str, word: str) -> tuple[str, str]:
    """Split a flag's word such as "hidden=128".

    Raises:
      InputError: it is no such word.
    """
    name, equals, value = (part.strip() for part in word.partition("="))
    if not (equals and name and value):
        raise pfl.InputError(f"--{flag} must read NAME=VALUE, got {shown(word)}.")
    return name, value


def parse_pairs(args: Any, flag: str, texts: Collection[str] = ()) -> dict[str, int | float | str]:
    """Parse options from words such as "hidden=128", with numbers where possible.

    Args:
      args: flags by name; each has a `value`.
      flag: name of the flag that has the words; of the same option, the last word counts.
      texts: options that stay text, since a column may be called "1".

    Raises:
      InputError: a word that does not read NAME=VALUE, or a number that no program holds.
    """
    options: dict[str, int | float | str] = {}
    for name, text in (name_and_value(flag, word) for word in args[flag].value):
        options[name] = text
        for kind in () if name in texts else (float, int):
            with contextlib.suppress(ValueError):  # Python reads no integers of 4,301 digits
                options[name] = kind(text)
        if isinstance(options[name], int | float):
            convert(f"{name} in --{flag}", text, type(options[name]))
    return options


def last_of_each(words: Sequence[str]) -> list[str]:
    """Return the last of the words NAME=VALUE of each name."""
    result: dict[str, str] = {}
    for word in words:
        name = name_matching.normalized(word.partition("=")[0])
        result.pop(name, None)
        result[name] = word
    return list(result.values())
