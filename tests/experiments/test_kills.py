"""A run that is killed, once or again and again, ends with the files of an uninterrupted one.

Every kill is sent to its own process, at a moment of five kinds (`MOMENTS`) drawn from a seed;
then the same command is given again. `-s` shows where each kill fell.
"""

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from experiments.cli import algorithm_folders
from tests.experiments.small_runs import SMALL, run_in
from tests.experiments.stopped_runs import assert_same_arrays

ROOT = Path(__file__).resolve().parents[2]
ALGORITHMS = ("fedavg", "scaffold", "feddwa", "fedasync", "pfedla")
ROUNDS = 16
# A matrix ends a chunk, and each chunk is followed by a checkpoint: small ones, many of them.
WORDS = (
    "--dataset=digits --num_clients=5 --num_seeds=2 --model=softmax --checkpoint_seconds=0 "
    f"--stragglers=1:1,3:2 --rounds={ROUNDS} --algorithms={','.join(ALGORITHMS)} "
    f"--matrix_rounds={','.join(map(str, range(1, ROUNDS + 1)))}"
).split()
# What the process has to make first, and within how many seconds after that the signal comes.
MOMENTS = {
    "start": (None, 3.0),
    "rounds": ("checkpoints/{name}/*[0-9]", 0.3),
    "checkpoint": ("checkpoints/{name}/*.orbax-checkpoint-tmp*", 0.02),
    "files": (".part-{name}", 0.2),
    "table": (".part-comparison*", 0.15),
}
EACH = ("start", "rounds", "checkpoint", "files")  # for each algorithm; "table" at the end


def command(folder, cache):
    words = [*WORDS, f"--output_dir={folder}", f"--compilation_cache={cache}"]
    return [sys.executable, "-m", "experiments.run", *words]


def steps(folder, name):
    """Return the rounds of complete checkpoints."""
    kept = folder / algorithm_folders.CHECKPOINTS / name
    return sorted(int(p.name) for p in kept.glob("*") if p.name.isdecimal())


def torn(folder, name):
    """Return incomplete checkpoints."""
    return list((folder / algorithm_folders.CHECKPOINTS / name).glob("*.orbax-checkpoint-tmp*"))


def in_progress(folder):
    """Return the first unfinished algorithm, or ""."""
    return next((n for n in ALGORITHMS if not (folder / n / "summary.json").exists()), "")


def one_try(folder, cache, number, wanted, moment, lots, log):
    """Starts the command and sends the signal; returns (algorithm in progress, exit code)."""
    pattern, within = MOMENTS[moment]
    delay, began = lots.uniform(0, within), time.time()

    def awaited():
        if pattern is None:
            return True
        with contextlib.suppress(OSError):  # it vanished while it was looked at
            return any(p.stat().st_mtime > began for p in folder.glob(pattern.format(name=wanted)))
        return False

    with log.open("w") as output:
        process = subprocess.Popen(
            command(folder, cache), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
            # Else a suite in the background would hand down that SIGINT is ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        try:
            while process.poll() is None and not awaited():
                time.sleep(0.001)
            end = time.monotonic() + delay
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.001)
            process.send_signal(number)  # nothing happens where it has ended
            return in_progress(folder), process.wait(timeout=600)
        finally:
            process.kill()
            process.wait()


def assert_same_files(folder, uninterrupted):
    def names(root):
        return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())

    assert names(folder) == names(uninterrupted)
    assert_same_arrays(folder, uninterrupted, ALGORITHMS)
    for name in ALGORITHMS:
        ours, theirs = (root / name / "metrics.csv" for root in (folder, uninterrupted))
        assert ours.read_bytes() == theirs.read_bytes()


EVERY = ",".join(map(str, range(1, ROUNDS + 1)))
ONCE = (*SMALL, "--num_seeds=1", "--partition=iid", "--train_samples=10", "--devices=1",
        f"--rounds={ROUNDS}", f"--matrix_rounds={EVERY}")  # fmt: skip
ON_HOSTS = ("--num_clients=20", "--participation=0.2", "--client_state=host")


@pytest.mark.parametrize(
    ("name", "more"), [("fedavg", ()), pytest.param("ditto", ON_HOSTS, marks=pytest.mark.costly)]
)
def test_run_continues_after_a_kill(tmp_path, name, more):
    folder, words = tmp_path / "out", (*ONCE, f"--algorithms={name}", *more)
    given = [*words, "--checkpoint_seconds=0", f"--output_dir={folder}"]
    process = subprocess.Popen([sys.executable, "-m", "experiments.run", *given], cwd=ROOT)
    try:
        while process.poll() is None and not [*folder.glob(f"checkpoints/{name}/[3-9]")]:
            time.sleep(0.01)
        process.kill()
        assert process.wait(timeout=300) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
    assert 3 <= steps(folder, name)[-1] < ROUNDS
    assert run_in(folder, *words) == run_in(tmp_path / "whole", *words) == 0
    ours, theirs = (tmp_path / place / name / "metrics.csv" for place in ("out", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert_same_arrays(folder, tmp_path / "whole", (name,), ["models.npz"])


@pytest.mark.costly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_compiles_ends_at_a_signal(tmp_path, number):
    folder = tmp_path / "out"
    words = [
        "--dataset=digits",
        "--model=resnet18",
        "--compilation_cache=",
        "--algorithms=scaffold",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *words, f"--output_dir={folder}"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while "compiling" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)  # XLA takes ten times as long
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number
    assert said.endswith("the same command continues from there.\n") and "algorithms: none." in said


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("uninterrupted") / "out"
    subprocess.run(command(folder, cache), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.mark.costly
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name
)
def test_killed_at_random_moments(uninterrupted, cache, tmp_path, number):
    folder, log = tmp_path / "out", tmp_path / "log.txt"
    lots, fell, halves, kept = random.Random(int(number)), Counter(), 0, {}
    for wanted, moment in [*itertools.product(ALGORITHMS, EACH), ("", "table")]:
        if (folder / wanted / "summary.json").exists():
            continue  # the signal before came so late that this algorithm was finished
        before = {name: steps(folder, name) for name in ALGORITHMS}
        torn_before = {path for name in ALGORITHMS for path in torn(folder, name)}
        name, code = one_try(folder, cache, number, wanted, moment, lots, log)
        if code == 0:
            break  # it finished before the signal came
        orderly = number != signal.SIGKILL and code == 128 + number
        assert orderly or code == -number, log.read_text()
        fell[name or "table", moment] += 1
        print(f"{number.name:8} {moment:10} {name:9} exit {code:4} at {steps(folder, name)[-1:]}")
        halves += not torn_before.issuperset(torn(folder, name))
        for other, seen in before.items():  # kept work is continued, never started again
            now = steps(folder, other)
            assert not seen or not now or now[-1] >= seen[-1]
        for path in folder.glob("*/summary.json"):
            assert kept.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
    print(f"{number.name}: {sum(fell.values())} kills, {halves} within a checkpoint: {dict(fell)}")
    done = subprocess.run(command(folder, cache), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in kept.items())
    assert_same_files(folder, uninterrupted)
    assert len(fell) >= 6  # how many come in time depends on the machine
    if number == signal.SIGKILL:
        assert halves  # some fell while a checkpoint was being written
