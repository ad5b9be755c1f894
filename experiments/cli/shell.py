"""A script's exit codes, errors in one sentence, and output streams that may be closed.

A script ends with 0; with 1 where the system refused something (a full disk, a missing
permission); with 2 for invalid input; and with 128 + N after signal N.
"""

import codecs
import contextlib
import errno
import functools
import io
import os
import re
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from absl.flags import (
    BooleanParser,
    Flag,
    FlagValues,
    FloatParser,
    IllegalFlagValueError,
    IntegerParser,
    UnrecognizedFlagError,
)
from absl.flags import Error as FlagsError

import fedjax_pfl as pfl
from fedjax_pfl.utils.errors import InputError, OutputError, cut, refused, sentence

from . import distributed, unknown_flags

PACKAGE = os.path.dirname(pfl.__file__)
FAULT, INPUT = 1, 2
INTERRUPTED = 128 + signal.SIGINT
GOES_ON = "Finished work is kept; once this is fixed, the same command continues from there."
ACTIONS = ("help", "helpfull", "list")  # flags that print something instead of a script's work
LEGIBLE = "fedjax_pfl.legible"  # as an error handler of codecs
# Replacements for characters that a terminal's encoding lacks.
SPELT = {
    "±": "+-",
    "×": "x",
    "–": "-",
    "—": "-",
    "…": "...",
    "’": "'",
    "•": "*",
    "│": "|",
    "┃": "|",
    "║": "|",
}


def script(more: str = "", kept: str = "") -> Callable:
    """Decorator of a script's `main(argv)`: what goes wrong is said in one line.

    `argv` has the program's name first; without it `main` takes the process's own. It returns the
    exit code.

    Args:
      more: said after what the system refused.
      kept: how the same command continues, where it is interrupted.
    """

    def decorate(main: Callable[[list[str]], int]) -> Callable[[Sequence[str] | None], int]:
        @functools.wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            try:
                with _plain_warnings():
                    return main(list(sys.argv if argv is None else argv))
            except (InputError, FlagsError) as error:
                return refuse(error)
            except OSError as error:
                return fault(error, more)
            except KeyboardInterrupt:
                if not kept:
                    raise
                print(f"Interrupted: the same command continues {kept}.", file=sys.stderr)
                return INTERRUPTED

        return run

    return decorate


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings of this package are said in a line, without the place in its code."""
    before = warnings.formatwarning

    def said(message, category, filename, lineno, line=None):
        if issubclass(category, UserWarning) and filename.startswith(PACKAGE):
            return f"warning: {sentence(message)}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = said
    try:
        yield
    finally:
        warnings.formatwarning = before


def describe_flags(values: FlagValues, name: str, width: int) -> str:
    """The flags of the script of that name, a line each; their names are `width` wide."""
    return "\n".join(
        f"  --{flag.name:{width}} {meaning(flag)}" for flag in values.get_flags_for_module(name)
    )


def meaning(flag: Flag, nothing: str = "none") -> str:
    """What a flag's help says in its first line, and its default.

    Args:
      nothing: the word for the default of a flag that has no value unless it is given.
    """
    text = flag.help.partition("\n")[0].removesuffix(";").strip()
    default = flag.default
    told = any(words in text for words in ("(default: ", "must be given", "'auto': "))
    if flag.name in ACTIONS or told:
        return text
    if default in (None, "", []):
        default = nothing
    if isinstance(default, bool):
        default = str(default).lower()
    return f"{text} (default: {','.join(default) if isinstance(default, list) else default})"


def parsed(values: FlagValues, argv: Sequence[str], **options) -> list[str]:
    """Parses flags; returns the words that are no flags.

    Raises:
      InputError: an unknown flag with a name of hundreds of letters, for which absl's search for
        a near name would nest as many calls; a switch with a value that is neither yes nor no; no
        number, or one out of a flag's range.
      absl.flags.Error: unknown flags, with ours; another value that can't be.
    """
    try:
        return values(list(argv), **options)
    except UnrecognizedFlagError as error:
        names = [error.flagname, *unknown_flags.more(argv, error.flagname, values)]
        hints = (f"{name!r}. {unknown_flags.hint(name, values)}".strip() for name in names)
        text = f"Unknown command line flag {' Unknown too: '.join(hints)}"
        command = unknown_flags.corrected(argv, values) if len(names) > 1 else ""
        raise FlagsError(
            f"{text} The same command here has {command}" if command else text
        ) from None
    except RecursionError as error:
        raise InputError("No flag has a name that long: --help shows them.") from error
    except IllegalFlagValueError as error:
        raise _refused(str(error), values) or error from None


def _refused(message: str, values: FlagValues) -> InputError | None:
    """A sentence in place of absl's message on a flag's value; None where it has no such flag.

    The message reads "flag --NAME=VALUE: WHY", or "flag --NAME=None: Flag --NAME must ...".
    """
    said = re.match(r"flag --(\w+)=(.*?): ", message, re.DOTALL)
    if said is None or said[1] not in values:
        return None
    name, given, parser = said[1], said[2], values[said[1]].parser
    if isinstance(parser, BooleanParser):
        return refused(f"--{name}", given, "true or false")
    if not isinstance(parser, FloatParser | IntegerParser):
        return None
    why = message[said.end() :]
    if why.startswith("the value "):  # of `flags._Number`
        return InputError(f"--{name} {why.removeprefix('the value ')}")
    kind = "a whole number" if isinstance(parser, IntegerParser) else "a number"
    low, high = parser.lower_bound, parser.upper_bound
    bounds = [f"of at least {low:g}"] if low is not None else []
    if high is not None:
        bounds.append(f"below {high + 1:,}" if kind == "a whole number" else f"of at most {high:g}")
    return refused(f"--{name}", given, " ".join([kind, " and ".join(bounds)]).strip())


def refuse_words(words: Sequence[str], values: FlagValues) -> None:
    """Raises `absl.flags.Error` if there are any: words that are no flags."""
    if not words:
        return
    name = words[0].partition("=")[0].rpartition(".")[2]  # such as method=fedavg, common.lr=0.1
    hint = unknown_flags.hint(name, values) if "=" in words[0] else ""
    raise FlagsError(f"{words[0]!r} is no flag: write --NAME=VALUE. {hint}".strip())


def refuse(error: Exception) -> int:
    """Prints an error of the input in one line; returns the exit code."""
    said = str(error) if isinstance(error, InputError) else sentence(error)
    print(f"error: {said.removeprefix('ERROR:: ')}", file=sys.stderr)
    return INPUT


def fault(error: OSError, more: str = "") -> int:
    """Prints an error of the system; returns the exit code."""
    text = str(error)
    if not isinstance(error, OutputError) and error.strerror is not None:
        where = "" if error.filename is None else f"{cut(os.fsdecode(error.filename), 300)}: "
        text = f"{where}{error.strerror}."
    print(f"error: {text} {more}".rstrip(), file=sys.stderr)
    return FAULT


def leave(main: Callable[[], int]) -> NoReturn:
    """Ends the process with what `main` returns, when all that it printed is written.

    If the reader is gone (a closed pipe, as after `| head -1`), nothing more is written, and the
    script still does its work. If the output is lost for another reason, such as a full disk, the
    exit code says so.
    """
    streams = [_settle(name) for name in ("stdout", "stderr")]
    try:
        code = main()
    except InputError as error:  # of scripts that don't handle it themselves
        code = refuse(error)
    except OSError as error:
        code = fault(error)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        code = INTERRUPTED
    distributed.end(code)
    sys.stdout.flush()
    lost = streams[0] and streams[0].lost
    if lost and lost.errno != errno.EPIPE and not code:
        print(f"error: standard output can't be written: {lost.strerror}.", file=sys.stderr)
        code = FAULT
    sys.stderr.flush()
    if code > 128:  # a normal exit can crash while XLA is still compiling
        os._exit(code)
    sys.exit(code)


class _Sink(io.RawIOBase):
    """Writes to a file descriptor for as long as that works.

    Attributes:
      lost: the error that ended it, or None.
    """

    def __init__(self, stream: io.TextIOBase):
        self._stream = stream  # keeps the descriptor open
        self.lost: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, data) -> int:
        while self.lost is None:
            try:
                return os.write(self.fileno(), data)
            except BlockingIOError:
                select.select([], [self.fileno()], [])
            except OSError as error:
                self.lost = error
        return len(data)


def _settle(name: str) -> _Sink | None:
    """Replaces `sys.NAME` by a stream that fails at no character and at no write."""
    stream = getattr(sys, name)
    if stream is None:  # closed when the process began
        stream = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process runs
    try:
        stream.fileno()
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return None
    sink = _Sink(stream)
    kept = {"encoding": stream.encoding, "line_buffering": name == "stderr" or sink.isatty()}
    setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(sink), errors=LEGIBLE, **kept))
    return sink


def _legible(error: UnicodeError) -> tuple[str, int]:
    """The text written for characters that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spelt, error.object[error.start : error.end])), error.end


def _spelt(letter: str) -> str:
    if "─" <= letter <= "╿":  # boxes and lines
        return SPELT.get(letter, "-")
    if "⠀" <= letter <= "⣿":  # Braille, of which spinners are made
        return "*"
    return SPELT.get(letter) or letter.encode("ascii", "backslashreplace").decode()


codecs.register_error(LEGIBLE, _legible)
