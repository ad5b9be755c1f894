"""One input under a limit of time and memory, and the verdict on how it ended."""

import contextlib
import gc
import io
import re
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import absl.flags
import jax

from fedjax_pfl.utils.errors import InputError
from tests.fuzz.target import Attack

ACCEPTED, REFUSED, FAILED = "accepted", "one sentence", "failed"
SECONDS = 30  # of an input, on a machine that does other things too
MEMORY = 2**30  # bytes that an input may add to the largest size so far
LENGTH = 2000  # characters of a sentence; the longest list a hundred valid names
# What tells of a mistake in the program rather than in what it was given.
UNCLEAR = {
    "a traceback": "Traceback",
    "an error number": r"\[Errno ",
    "an array": r"\barray\(|\[ *\d+\.?\d*(,? +\d+\.?\d*){20}",
    "an object's address": r" at 0x[0-9a-f]{6}",
}


class TooLong(BaseException):
    """No `Exception`, so that no `except Exception` takes it for a bad file."""


def attempt(attack: Attack, given: Any, seconds: int = SECONDS) -> tuple[str, str]:
    """(how an input ended, the sentence or what is wrong), with everything printed kept silent."""
    before = _peak()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        outcome, said = _ended(attack, given, seconds)
    if jax.config.jax_enable_x64:  # a command line asked for double precision
        jax.config.update("jax_enable_x64", False)
    added = _peak() - before
    if added > MEMORY:
        gc.collect()
        _forget_peak()
        return FAILED, f"took {added / 2**30:.1f} GiB, and ended: {outcome}: {said[:200]}"
    return outcome, said


def _ended(attack: Attack, given: Any, seconds: int) -> tuple[str, str]:
    def late(number, frame):
        where = "".join(traceback.format_stack(frame)[-6:])
        raise TooLong(f"was not done after {seconds} s, in\n{where}")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        said = attack(given)
    except (InputError, absl.flags.Error) as error:
        said = str(error).removeprefix("ERROR:: ")
    except KeyboardInterrupt:
        raise
    except TooLong as error:
        return FAILED, str(error)
    except BaseException as error:
        last = "".join(traceback.format_tb(error.__traceback__)[-4:])
        return FAILED, f"{type(error).__name__}: {str(error)[:500]}\n{last}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    if said is None:
        return ACCEPTED, ""
    wrong = unclear(said)
    return (FAILED, f"said {wrong}: {said[:1000]}") if wrong else (REFUSED, said)


def unclear(said: str) -> str | None:
    """What keeps a text from being one clear sentence, or None."""
    if not said.strip():
        return "nothing"
    if len(said.splitlines()) > 1:
        return "several lines"
    if len(said) > LENGTH:
        return f"{len(said)} characters"
    return next((what for what, sign in UNCLEAR.items() if re.search(sign, said)), None)


def main_of(main, argv: list[str]) -> str | None:
    """Calls a script's `main` as an attack does: the sentence that it printed, or None."""
    code = main(argv)
    if code == 0:
        return None
    said = sys.stderr.getvalue()
    if code not in (1, 2) or not said.startswith("error: ") or not said.endswith("\n"):
        raise AssertionError(f"ended with exit code {code} and printed {said[:500]!r}")
    return said.removeprefix("error: ").removesuffix("\n")


def _peak() -> int:
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # Linux alone can
        Path("/proc/self/clear_refs").write_text("5")
