"""Clients' state in host memory: what ends a run midway costs nothing but the time."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import run
from fedjax_pfl.engine import state_store

from .conftest import drawing
from .stopped_runs import assert_same_arrays
from .test_faults import error_line, limited

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 12
# A matrix ends a chunk, so that there is a checkpoint after each round.
WORDS = (
    "--dataset=digits --num_clients=40 --participation=0.2 --num_seeds=1 --model=mlp "
    f"--partition=iid --train_samples=10 --algorithms=fedavg,ditto --rounds={ROUNDS} "
    f"--matrix_rounds={','.join(map(str, range(1, ROUNDS + 1)))} "
    "--client_state=host --devices=1 --compilation_cache="
).split()


def call(folder, *words):
    with drawing():
        return run.main(["run", *WORDS, *words, f"--output_dir={folder}"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert call(folder) == 0
    return folder


def assert_same(folder, whole):
    for name in ("fedavg", "ditto"):
        ours, theirs = ((root / name / "metrics.csv").read_bytes() for root in (folder, whole))
        assert ours == theirs
    assert_same_arrays(folder, whole, ("fedavg", "ditto"), ["models.npz"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_run_goes_on_after_a_signal(number, whole, tmp_path):
    folder = tmp_path / "out"
    words = [*WORDS, "--checkpoint_seconds=0", f"--output_dir={folder}"]
    process = subprocess.Popen([sys.executable, "-m", "experiments.run", *words], cwd=ROOT)
    try:
        while process.poll() is None and not [*folder.glob("checkpoints/ditto/[3-9]")]:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=300) == (143 if number == signal.SIGTERM else -number)
    finally:
        process.kill()
        process.wait()
    kept = (folder / "fedavg" / "summary.json").stat().st_mtime_ns
    rounds = [int(path.name) for path in folder.glob("checkpoints/ditto/*[0-9]")]
    assert 3 <= max(rounds) < ROUNDS
    assert call(folder) == 0
    assert (folder / "fedavg" / "summary.json").stat().st_mtime_ns == kept
    assert_same(folder, whole)


def test_a_disk_that_fills_up(whole, tmp_path, monkeypatch, capsys):
    """Rows are in a file, in which the clients of the higher numbers have no room."""
    folder = tmp_path / "out"
    with monkeypatch.context() as patch, limited(400_000):
        patch.setattr(state_store, "MEMORY", 0)
        assert call(folder) == 1
    error = error_line(capsys)
    assert "What clients keep can't be written to " in error and "File too large." in error
    kept = (folder / "fedavg" / "summary.json").stat().st_mtime_ns
    assert call(folder) == 0
    assert (folder / "fedavg" / "summary.json").stat().st_mtime_ns == kept
    assert_same(folder, whole)
