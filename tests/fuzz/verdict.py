"""One input under limits of time and memory, and the verdict on how it ended."""

import contextlib
import io
import re
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import absl.flags
import jax
from hypothesis.strategies import SearchStrategy

from fedjax_pfl.utils.errors import InputError

OUTCOMES = ACCEPTED, REFUSED, FAILED = "accepted", "refused", "failed"
MEMORY = 2**30  # bytes that an input may add to the largest size of the process so far
LENGTH = 2000  # characters of a sentence; the longest lists a hundred valid names
UNCLEAR = {  # signs of a mistake in the program rather than in the input
    "a traceback": "Traceback",
    "an error number": r"\[Errno ",
    "an array": r"\barray\(|\[ *\d+\.?\d*(,? +\d+\.?\d*){20}",
    "an object's address": r" at 0x[0-9a-f]{6}",
}
# Returns nothing where it accepts an input, else the sentence; `InputError` is another refusal.
Attack = Callable[[Any], str | None]


@dataclass(frozen=True)
class Target:
    """A part of the package and its malformed inputs.

    Attributes:
      share: its part of all inputs, in any unit; slow targets have less.
      prepare: returns the strategy and the attack. The working folder is a scratch folder that has
        the finished runs of `files.finished_runs` under "finished".
      seconds: that one input may take.
      batch: inputs of one test.
    """

    share: float
    prepare: Callable[[], tuple[SearchStrategy, Attack]]
    seconds: int = 30
    batch: int = 250


class TooLong(BaseException):
    """Not an `Exception`, so that no reader takes it for a bad file."""


def attempt(attack: Attack, given: Any, seconds: int = 30) -> tuple[str, str]:
    """(outcome, the sentence or what is wrong); everything printed is discarded."""
    before, silent = _peak(), io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        outcome, text = _ended(attack, given, seconds)
    jax.config.update("jax_enable_x64", False)  # a command line may have asked for it
    added = _peak() - before
    if added > MEMORY:
        return FAILED, f"took {added / 2**30:.1f} GiB, and ended: {outcome}: {text[:200]}"
    return outcome, text


def _ended(attack: Attack, given: Any, seconds: int) -> tuple[str, str]:
    def late(number, frame):
        where = "".join(traceback.format_stack(frame)[-6:])
        raise TooLong(f"was not done after {seconds} s, in\n{where}")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        text = attack(given)
    except (InputError, absl.flags.Error) as error:
        text = str(error).removeprefix("ERROR:: ")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        last = "".join(traceback.format_tb(error.__traceback__)[-4:])
        return FAILED, f"{type(error).__name__}: {str(error)[:3000]}\n{last}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    if text is None:
        return ACCEPTED, ""
    wrong = unclear(text)
    return (FAILED, f"printed {wrong}: {text[:1000]}") if wrong else (REFUSED, text)


def unclear(text: str) -> str | None:
    """What keeps a text from being one clear sentence, or None."""
    if not text.strip():
        return "nothing"
    if len(text.splitlines()) > 1:
        return "several lines"
    if len(text) > LENGTH:
        return f"{len(text)} characters"
    return next((what for what, sign in UNCLEAR.items() if re.search(sign, text)), None)


def main_of(main: Callable[[list[str]], int], argv: list[str]) -> str | None:
    """Calls a script's `main`; returns the sentence that it printed, or None where it succeeded."""
    code = main(argv)
    if code == 0:
        return None
    text = sys.stderr.getvalue()
    if code not in (1, 2) or not text.startswith("error: ") or not text.endswith("\n"):
        raise AssertionError(f"ended with exit code {code} and printed {text[:500]!r}")
    return text.removeprefix("error: ").removesuffix("\n")


def _peak() -> int:
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size
