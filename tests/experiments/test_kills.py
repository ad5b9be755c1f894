"""A run that is killed ends with the files of an uninterrupted one."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.cli import algorithm_folders
from tests.experiments.small_runs import SMALL, run_in
from tests.experiments.stopped_runs import assert_same_arrays

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 16


def steps(folder, name):
    """Return the rounds of complete checkpoints."""
    kept = folder / algorithm_folders.CHECKPOINTS / name
    return sorted(int(p.name) for p in kept.glob("*") if p.name.isdecimal())


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
