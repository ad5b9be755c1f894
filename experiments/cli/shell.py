"""A command's exit codes, errors in one sentence, and output streams that may be closed.

A command ends with 0; with 1 where the system refused something (a full disk, a missing
permission) or a part of the work failed (a program that can't be compiled); with 2 for invalid
input; and with 128 + N after signal N.
"""

import contextlib
import errno
import functools
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TextIO

from absl.flags import Error as FlagsError

import fedjax_pfl as pfl
from fedjax_pfl.utils.errors import InputError, OutputError, cut, sentence

from . import distributed

# Replacements for characters that an ASCII terminal lacks; others are escaped.
ASCII = str.maketrans({"±": "+-", "×": "x", "–": "-", "—": "-", "…": "...", "’": "'", "•": "*"})
PACKAGES = tuple(
    os.path.join(os.path.dirname(file), "") for file in (pfl.__file__, os.path.dirname(__file__))
)
FAULT, INPUT = 1, 2
INTERRUPTED = 128 + signal.SIGINT
GOES_ON = "Finished work is kept; once this is fixed, the same command continues from there."


class Interrupted(Exception):
    """Error: a run within a command was interrupted, and has said so.

    Attributes:
      code: exit code of the command.
    """

    def __init__(self, code: int):
        super().__init__(f"Interrupted with exit code {code}.")
        self.code = code


def script(more: str = "", continues: str = "") -> Callable:
    """Decorate a command's `main(argv)` to print an error as one line.

    `argv` has the program's name first; without it `main` takes the process's own. It returns the
    exit code.

    Args:
      more: printed after an error of the system.
      continues: how the same command continues, where it is interrupted.
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
            except Interrupted as error:
                return error.code
            except KeyboardInterrupt:
                if not continues:
                    raise
                print(f"Interrupted: the same command continues {continues}.", file=sys.stderr)
                return INTERRUPTED

        return run

    return decorate


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings of our packages in one line, without their location."""
    before = warnings.formatwarning

    def one_line(message, category, filename, lineno, line=None):
        if issubclass(category, UserWarning) and filename.startswith(PACKAGES):
            return f"warning: {sentence(message)}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def refuse(error: Exception) -> int:
    """Print an input error in one line; return the exit code."""
    text = str(error) if isinstance(error, InputError) else sentence(error)
    print(f"error: {text}", file=sys.stderr)
    return INPUT


def fault(error: OSError, more: str = "") -> int:
    """Print a system error; return the exit code."""
    text = str(error)
    if not isinstance(error, OutputError) and error.strerror is not None:
        where = "" if error.filename is None else f"{cut(os.fsdecode(error.filename), 300)}: "
        text = f"{where}{error.strerror}."
    print(f"error: {text} {more}".rstrip(), file=sys.stderr)
    return FAULT


def leave(main: Callable[[], int]) -> NoReturn:
    """End the process with the exit code of `main` after flushing its output.

    If the reader is gone (a closed pipe, as after `| head -1`), nothing more is written, and the
    command still does its work. If the output is lost for another reason, such as a full disk, the
    exit code is 1.
    """
    sys.stdout, sys.stderr = streams = _Stream(sys.stdout), _Stream(sys.stderr)
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
    streams[0].flush()
    lost = streams[0].lost
    if lost and lost.errno != errno.EPIPE and not code:
        print(f"error: standard output can't be written: {lost.strerror}.", file=sys.stderr)
        code = FAULT
    streams[1].flush()
    for stream in streams:
        stream.close_if_lost()
    if code > 128:  # a normal exit can crash while XLA is still compiling
        os._exit(code)
    sys.exit(code)


class _Stream:
    """A text stream that drops what is written after an error; other attributes are the stream's.

    Characters that its encoding lacks are replaced or escaped.

    Attributes:
      lost: the error that ended it, or None.
    """

    def __init__(self, stream: TextIO | None):
        # None if it was closed when the process began.
        self.stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115
        self.lost: OSError | None = None
        if isinstance(self.stream, io.TextIOWrapper):
            self.stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str):
        return getattr(self.__dict__["stream"], name)

    def write(self, text: str) -> int:
        plain = (self.stream.encoding or "").lower() in ("ascii", "us-ascii", "ansi_x3.4-1968")
        self._try(lambda: self.stream.write(text.translate(ASCII) if plain else text))
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            if self.lost is None:
                act()
        except OSError as error:
            self.lost = error

    def close_if_lost(self) -> None:
        """Discard unwritten output, so that the interpreter's last flush succeeds."""
        if self.lost is not None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.stream.fileno())
