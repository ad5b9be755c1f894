"""Malformed inputs by target, and tests of the verdicts on them.

Where an input ends its process, pytest-xdist starts another one and reports the batch as failed.
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
from tests.fuzz import commands, files, interface, verdict, whole_runs

TARGETS = {name: one for module in (commands, files, interface, whole_runs)
           for name, one in module.TARGETS.items()}  # fmt: skip
INPUTS = int(os.environ.get("FUZZ_INPUTS", "2000"))
SEED = os.environ.get("FUZZ_SEED", "quick")


def batches(inputs: int) -> list[tuple[str, int, int]]:
    """(target, its first input, number of inputs) of every batch; each target has at least one."""
    shares = sum(one.share for one in TARGETS.values())
    counts = {name: max(1, round(inputs * one.share / shares)) for name, one in TARGETS.items()}
    return [
        (name, first, min(TARGETS[name].batch, count - first))
        for name, count in counts.items()
        for first in range(0, count, TARGETS[name].batch)
    ]


@pytest.fixture(scope="module")
def scratch():
    """A working folder that is also home and cache and holds finished runs."""
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(name)
        patch.chdir(folder)
        files.finished_runs(folder / "finished")
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("FEDJAX_PFL_CACHE", str(folder / "cache"))
        patch.delenv("FEDJAX_PFL_DATA", raising=False)
        yield folder


@functools.cache
def prepared(name):
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
def test_malformed_input_is_accepted_or_refused_in_one_sentence(
    name, first, count, scratch, record_property
):
    inputs, attack = prepared(name)
    counts, failures = Counter(), []

    def each(given):
        outcome, text = verdict.attempt(attack, given, TARGETS[name].seconds)
        counts[outcome] += 1
        if outcome == verdict.FAILED:
            failures.append(f"{given!r:.5000}\n{text}")

    run_inputs(inputs, f"{SEED} {name} {first}", count, each)
    for outcome, times in counts.items():
        record_property(outcome, times)
    shown = "\n\n".join(failures[:5])
    assert not failures, f"{len(failures)} of {counts}, the first:\n{shown}"
    assert sum(counts.values()) >= count
    assert (
        counts[verdict.REFUSED] or name == "checkpoints" or count < 20
    )  # damaged ones are skipped


def refuses(message):
    def attack(given):
        raise InputError(message)

    return attack


def prints(message):
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
        (prints("Not so.\nBut so."), 0, "printed several lines"),
        (prints("a" * 3000), 0, "printed 3000 characters"),
        (prints("No file: [Errno 2] x"), 0, "printed an error number"),
        (prints("It must be 1, got array([2, 3])."), 0, "printed an array"),
        (prints(f"It must be 1, got {list(range(99))}."), 0, "printed an array"),
        (prints("It can't be <object object at 0x7f0a1b2c3d>."), 0, "printed an object's address"),
        (prints(""), 0, "printed nothing"),
    ],
)
def test_verdict_on_failures(attack, given, wrong):
    outcome, text = verdict.attempt(attack, given, seconds=1)
    assert outcome == verdict.FAILED
    assert wrong in text


def test_verdict_on_what_fills_the_memory(monkeypatch):
    sizes = iter([2**30, 3 * 2**30])
    monkeypatch.setattr(verdict, "_peak", lambda: next(sizes))
    assert verdict.attempt(refuses("It is large."), 0) == (
        verdict.FAILED, "took 2.0 GiB, and ended: refused: It is large.",
    )  # fmt: skip


def test_verdict_on_acceptance_and_refusal():
    assert verdict.attempt(lambda given: None, 0) == (verdict.ACCEPTED, "")
    one = "It must be 1, got 2."
    assert verdict.attempt(refuses(one), 0) == (verdict.REFUSED, one)


def test_the_same_seed_makes_the_same_inputs():
    first, again, other = [], [], []
    for seed, into in (("a", first), ("a", again), ("b", other)):
        run_inputs(hypothesis.strategies.integers(0, 2**48), seed, 20, into.append)
    assert first == again != other


def test_batches_cover_every_input():
    counts = Counter()
    for name, first, count in batches(100_000):
        assert 0 < count <= TARGETS[name].batch and first == counts[name]
        counts[name] += count
    assert abs(sum(counts.values()) - 100_000) < len(TARGETS) == len(counts)
    assert counts["whole runs"] >= 200
