"""Malformed inputs by target, the verdict on each, and tests of the verdicts."""

import contextlib
import io
import math
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from functools import cache

import absl.flags
import jax
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from fedjax_pfl.utils.errors import InputError
from tests.fuzz import commands, library

# name: (how many of a thousand inputs it has, a function that returns its strategy and attack)
TARGETS = commands.TARGETS | library.TARGETS
TARGETS = {name: (share, cache(make)) for name, (share, make) in TARGETS.items()}
QUICK = ("partition flags", "algorithms and rules")
INPUTS = int(os.environ.get("FUZZ_INPUTS", "1000"))
SEED = os.environ.get("FUZZ_SEED", "quick")
BATCHES = math.ceil(INPUTS / 5000)  # of each target
CALM = {"suppress_health_check": [*HealthCheck]}
MEMORY = 2**30  # bytes that an input may add to the largest size of the process so far
UNCLEAR = {  # signs of a mistake in the program rather than in the input
    "nothing": r"\A\s*\Z",
    "several lines": "\n",
    "too many characters": r"(?s:.){2001}",  # the longest lists a hundred valid names
    "a traceback": "Traceback",
    "an array": r"\barray\(|\[ *\d+\.?\d*(,? +\d+\.?\d*){20}",
}


class TooLong(BaseException):
    """Not an `Exception`, so that no reader takes it for a bad file."""


def attempt(attack, value, seconds=60):
    """(outcome, text) of an attack, which returns nothing or the sentence that was printed."""

    def late(number, frame):
        raise TooLong(f"was not done after {seconds} s")

    before = peak()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            text = attack(value)
    except (InputError, absl.flags.Error) as error:
        text = str(error).removeprefix("ERROR:: ")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        last = "".join(traceback.format_tb(error.__traceback__)[-6:])
        return "failed", f"{type(error).__name__}: {str(error)[:3000]}\n{last}"
    finally:
        signal.alarm(0)
        jax.config.update("jax_enable_x64", False)  # a command line may have asked for it
    if (added := peak() - before) > MEMORY:
        return "failed", f"took {added / 2**30:.1f} GiB, and ended: {str(text)[:200]}"
    if text is None:
        return "accepted", ""
    wrong = next((what for what, sign in UNCLEAR.items() if re.search(sign, text)), None)
    return ("failed", f"printed {wrong}: {text[:1000]}") if wrong else ("refused", text)


def peak():
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A working folder that is also home and cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        commands.scene()
        patch.setenv("HOME", os.path.abspath("home"))
        patch.setenv("FEDJAX_PFL_CACHE", os.path.abspath("cache"))
        patch.delenv("FEDJAX_PFL_DATA", raising=False)
        yield


@pytest.fixture(scope="module")
def finished_runs(scratch):
    """Finished runs in the working folder."""
    library.finished_runs()


# The quick ones first: the others change the working folder.
OTHERS = [pytest.param(name, marks=pytest.mark.costly) for name in TARGETS if name not in QUICK]


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("name", [*QUICK, *OTHERS])
def test_malformed_input_is_accepted_or_refused(name, batch, scratch, request):
    if name not in QUICK:
        request.getfixturevalue("finished_runs")
    count = math.ceil(TARGETS[name][0] * INPUTS / 1000 / BATCHES)
    inputs, attack = TARGETS[name][1]()
    counts, failures = Counter(), []

    @seed(f"{SEED} {name} {batch}")
    @settings(max_examples=count, phases=[Phase.generate], database=None, deadline=None, **CALM)
    @given(inputs)
    def each(value):
        outcome, text = attempt(attack, value)
        counts[outcome] += 1
        if outcome == "failed":
            failures.append(f"{value!r:.5000}\n{text}")

    each()
    shown = "\n\n".join(failures[:5])
    assert not failures, f"{len(failures)} of {counts}, the first:\n{shown}"
    assert sum(counts.values()) >= count
    assert counts["refused"] or count < 20


def told(given):
    if given == "refuse":
        raise InputError("It must be 1, got 2.")
    if given == "crash":
        raise IndexError("list index out of range")
    try:
        time.sleep(20 * (given == "sleep"))
    except Exception:  # a reader that takes any error for a bad file
        return "It is slow."
    return given


@pytest.mark.parametrize(
    ("given", "outcome", "text"),
    [
        (None, "accepted", ""),
        ("It must be 1, got 2.", "refused", "It must be 1, got 2."),
        ("refuse", "refused", "It must be 1, got 2."),
        ("crash", "failed", "IndexError: list index out of range"),
        ("sleep", "failed", "was not done after 1 s"),
        ("Not so.\nBut so.", "failed", "printed several lines"),
        ("a" * 3000, "failed", "printed too many characters"),
        (f"It must be 1, got {list(range(99))}.", "failed", "printed an array"),
        ("", "failed", "printed nothing"),
    ],
)
def test_verdict(given, outcome, text):
    found, said = attempt(told, given, seconds=1)
    assert found == outcome and text in said


def test_verdict_on_what_fills_the_memory(monkeypatch):
    sizes = iter([2**30, 3 * 2**30])
    monkeypatch.setitem(globals(), "peak", lambda: next(sizes))
    assert attempt(told, "Large.") == ("failed", "took 2.0 GiB, and ended: Large.")
