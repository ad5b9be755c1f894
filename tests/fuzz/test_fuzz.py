"""A seeded part of the fuzzing, and checks that it finds bad answers."""

import os
import shutil
import time
from pathlib import Path

import pytest

from fedjax_pfl.utils.errors import InputError
from tests.fuzz import folders, guard, workers
from tests.fuzz.target import TARGETS, dealt, keep, kept

INPUTS = 2_000  # `make fuzz` runs 50 times as many
COUNTS = dealt(INPUTS, list(TARGETS))


@pytest.fixture(scope="module")
def at_work(tmp_path_factory):
    """A working folder as a worker has it, with finished runs."""
    root = tmp_path_factory.mktemp("runs")
    finished = root / "finished"
    finished.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "FEDJAX_PFL_CACHE", "FEDJAX_PFL_DATA"):  # put back in the end
            patch.setenv(name, os.environ.get(name, ""))
        patch.chdir(Path.cwd())
        folders.finished_runs(finished)
        folder = workers.scratch(finished)
        yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_is_taken_or_refused_in_one_sentence(name, at_work):
    inputs, attack = TARGETS[name].prepare()
    counts, failures = dict.fromkeys((guard.ACCEPTED, guard.REFUSED, guard.FAILED), 0), []

    def each(given):
        outcome, said = guard.attempt(attack, given)
        counts[outcome] += 1
        if outcome == guard.FAILED:
            failures.append(f"{given!r:.500}\n{said}")

    workers.run_inputs(inputs, f"quick {name}", COUNTS[name], each)
    assert not failures, f"{len(failures)} of {counts}, the first:\n{failures[0]}"
    assert sum(counts.values()) >= COUNTS[name]
    assert counts[guard.REFUSED] or name == "checkpoints"  # damaged ones are skipped


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


@pytest.mark.parametrize("given", [["--a=\udcff", "\0"], "f(1)", ["npz", b"\x93NUMPY"], b"--a=1"])
def test_a_kept_input_comes_back(given, tmp_path):
    path = keep(tmp_path / "kept", "run flags", given, "why")
    assert kept(path) == ("run flags", given)
    assert keep(tmp_path / "kept", "run flags", given, "why") != path


def test_the_same_seed_makes_the_same_inputs():
    first, again, other = ([], [], [])
    for seed, into in (("a", first), ("a", again), ("b", other)):
        workers.run_inputs(folders.SEEDS, seed, 20, into.append)
    assert first == again != other


def test_inputs_are_dealt_out_by_shares():
    assert sum(one.share for one in TARGETS.values()) > 900
    dealt_out = {}
    for name, _, count in workers.batches(10_000, list(TARGETS)):
        assert count <= workers.BATCH
        dealt_out[name] = dealt_out.get(name, 0) + count
    assert dealt_out == dealt(10_000, list(TARGETS))
    assert abs(sum(dealt_out.values()) - 10_000) < len(TARGETS)
