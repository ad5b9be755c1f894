"""Hostile inputs by target, and tests of the verdicts on them.

The quick suite tries 2,000 inputs, `make fuzz` 100,000 in batches over several processes. Where an
input kills its process, pytest-xdist starts another one and reports the batch as failed.
"""

import functools
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from fedjax_pfl.utils.errors import InputError
from tests.fuzz import (  # noqa: F401 - their targets
    commands,
    files,
    folders,
    guard,
    interface,
    whole_runs,
)
from tests.fuzz.target import TARGETS, dealt

INPUTS = int(os.environ.get("FUZZ_INPUTS", "2000"))
SEED = os.environ.get("FUZZ_SEED", "quick")
BATCH = 250  # inputs of one test


def batches(inputs: int) -> list[tuple[str, int, int]]:
    """(target, its first input, number of inputs) of every batch."""
    return [
        (name, first, min(BATCH, count - first))
        for name, count in dealt(inputs, list(TARGETS)).items()
        for first in range(0, count, BATCH)
    ]


@pytest.fixture(scope="module")
def at_work():
    """A working folder that is also home and cache and holds finished runs."""
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(name)
        patch.chdir(Path.cwd())  # put back in the end
        (folder / "finished").mkdir()
        folders.finished_runs(folder / "finished")
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("FEDJAX_PFL_CACHE", str(folder / "cache"))
        patch.delenv("FEDJAX_PFL_DATA", raising=False)
        patch.chdir(folder)
        yield folder


@functools.cache
def prepared(name):
    """(strategy, attack) of a target."""
    return TARGETS[name].prepare()


def run_inputs(inputs, seed: str, count: int, each) -> None:
    """Hands `count` inputs to `each`; the same ones for the same seed."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(inputs)
    def one(given):
        each(given)

    one()


@pytest.mark.parametrize(("name", "first", "count"), batches(INPUTS))
def test_hostile_input_is_accepted_or_refused_in_one_sentence(
    name, first, count, at_work, record_property
):
    inputs, attack = prepared(name)
    counts, failures = Counter(), []

    def each(given):
        outcome, said = guard.attempt(attack, given, TARGETS[name].seconds)
        counts[outcome] += 1
        if outcome == guard.FAILED:
            failures.append(f"{given!r:.5000}\n{said}")

    run_inputs(inputs, f"{SEED} {name} {first}" if first else f"{SEED} {name}", count, each)
    for outcome, times in counts.items():
        record_property(outcome, times)
    assert not failures, f"{len(failures)} of {counts}, the first:\n{failures[0]}"
    assert sum(counts.values()) >= count
    # Damaged checkpoints are skipped.
    assert counts[guard.REFUSED] or name == "checkpoints" or count < 20


def refuses(message):
    def attack(given):
        raise InputError(message)

    return attack


def says(message):
    """As an attack on a script does: what it printed."""
    return lambda given: message


def crashes(given):
    return [][given]


def sleeps(given):
    try:
        time.sleep(given)
    except Exception:  # a reader that takes any error for a bad file
        raise InputError("It is slow.") from None


@pytest.mark.parametrize(
    ("attack", "given", "wrong"),
    [
        (crashes, 3, "IndexError: list index out of range"),
        (sleeps, 20, "was not done after 1 s"),
        (says("Not so.\nBut so."), 0, "said several lines"),
        (says("a" * 3000), 0, "said 3000 characters"),
        (says("No file: [Errno 2] x"), 0, "said an error number"),
        (says("It must be 1, got array([2, 3])."), 0, "said an array"),
        (says(f"It must be 1, got {list(range(99))}."), 0, "said an array"),
        (says("It can't be <object object at 0x7f0a1b2c3d>."), 0, "said an object's address"),
        (says(""), 0, "said nothing"),
    ],
)
def test_verdict_on_what_is_bad(attack, given, wrong):
    outcome, said = guard.attempt(attack, given, seconds=1)
    assert outcome == guard.FAILED
    assert wrong in said


def test_verdict_on_what_fills_the_memory(monkeypatch):
    sizes = iter([2**30, 3 * 2**30])
    monkeypatch.setattr(guard, "_peak", lambda: next(sizes))
    outcome, said = guard.attempt(refuses("It is large."), 0)
    assert (outcome, said) == (
        guard.FAILED,
        "took 2.0 GiB, and ended: one sentence: It is large.",
    )


def test_verdict_on_what_is_well():
    assert guard.attempt(lambda given: None, 0) == (guard.ACCEPTED, "")
    assert guard.attempt(refuses("It must be 1, got 2."), 0) == (
        guard.REFUSED,
        "It must be 1, got 2.",
    )


def test_the_same_seed_makes_the_same_inputs():
    first, again, other = ([], [], [])
    for seed, into in (("a", first), ("a", again), ("b", other)):
        run_inputs(folders.SEEDS, seed, 20, into.append)
    assert first == again != other


def test_batches_cover_every_input():
    assert sum(one.share for one in TARGETS.values()) > 900
    counts = Counter()
    for name, first, count in batches(10_000):
        assert 0 < count <= BATCH and first == counts[name]
        counts[name] += count
    assert counts == dealt(10_000, list(TARGETS))
    assert abs(sum(counts.values()) - 10_000) < len(TARGETS)
