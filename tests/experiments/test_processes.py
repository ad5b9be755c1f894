"""Runs in several processes, on the loopback address: numbers, files, signals, deaths, errors."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.cli import algorithm_folders
from tests.engine.multi_process import simulated
from tests.experiments.small_runs import run_in

pytestmark = pytest.mark.costly

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["--dataset=digits", "--num_clients=5", "--model=softmax", "--num_seeds=1",
         "--participation=0.6", "--compilation_cache=", "--algorithms=fedavg"]  # fmt: skip
# Chunks have at most 50 rounds, and each is followed by a checkpoint.
ROUNDS = 400
LONG = [f"--rounds={ROUNDS}", "--checkpoint_seconds=0", "--matrix_rounds=1"]
MINUTES = 600  # a machine may be busy with other tests


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Started:
    """Two processes of one run, each in a folder of its own; their output is in `said` of each."""

    def __init__(self, place, *words, own=()):
        port = free_port()
        self.places = [place / f"process{k}-{port}" for k in (0, 1)]
        self.running = []
        for k, folder in enumerate(self.places):
            folder.mkdir(parents=True)
            more = own[k] if own else []
            command = [sys.executable, "-m", "experiments.run", *WORDS, *words, *more,
                       f"--distributed=127.0.0.1:{port},2,{k}"]  # fmt: skip
            with (folder.parent / f"{folder.name}.txt").open("w") as out:
                process = subprocess.Popen(
                    command, cwd=folder, stdout=out, stderr=out, env=environment()
                )
            self.running.append(process)

    def codes(self):
        return [each.wait(timeout=MINUTES) for each in self.running]

    def said(self, k):
        return (self.places[k].parent / f"{self.places[k].name}.txt").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.running:
            each.kill()
            each.wait()


def environment():
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}


def same(folder, other, tolerance, name="fedavg"):
    """Whether the results in two runs' folders agree."""
    one, two = (pfl.Result.load(each / name) for each in (folder, other))
    assert one.scores.keys() == two.scores.keys()
    for name, score in one.scores.items():
        np.testing.assert_allclose(score, two.scores[name], tolerance, tolerance, err_msg=name)


def alone(folder, *words):
    assert run_in(folder, *WORDS, *words, "--devices=1") == 0
    return folder


def test_two_processes_give_the_numbers_of_one(tmp_path):
    """To the bit again, and with two devices each. The first one prints and writes."""
    folders = [tmp_path / name for name in ("one", "again", "four")]
    more = ("--rounds=4", "--new_clients=1", "--new_client_steps=0,3", "--set=fedavg.momentum=0.5")
    for folder, count in zip(folders, (2, 2, 4), strict=True):
        words = (*more, f"--devices={count}", f"--output_dir={folder}")
        with Started(folder.with_suffix(".places"), *words) as pair:
            assert pair.codes() == [0, 0], pair.said(0) + pair.said(1)
        assert f"{count} x cpu (cpu) in 2 processes" in pair.said(0)
        assert "Table, pictures and a folder for each algorithm" in pair.said(0)
        assert "accuracy" not in pair.said(1).lower()
        assert [list(place.iterdir()) for place in pair.places] == [[], []]
    same(folders[0], folders[1], 0)
    same(folders[0], folders[2], 1e-5)
    wanted = (alone(tmp_path / "alone", *more) / "new_clients.md").read_text()
    assert [(each / "new_clients.md").read_text() for each in folders] == [wanted] * 3


def test_a_patient_run_is_lengthened_by_two_processes(tmp_path):
    """It begins with given values, of which some are frozen, and keeps its optimizers' states."""
    file, folders = tmp_path / "first.npz", [tmp_path / "pair", tmp_path / "alone"]
    np.savez(file, **{"fc_0.kernel": np.linspace(-1, 1, 64 * 6, dtype=np.float32).reshape(64, 6)})
    more = ("--model=mlp", "--model_option=hidden=6", f"--init_from={file}", "--init_partial",
            "--freeze=fc_0", "--optimizer=adam", "--keep_optimizer_state", "--learning_rate=0.01",
            "--rounds=60", "--validation_fraction=0.2", "--keep_state", "--save_models",
    )  # fmt: skip
    results = []
    for patience in (1, 2):
        words = (*more, f"--patience={patience}")
        place = tmp_path / f"patience{patience}"
        with Started(place, *words, "--devices=2", f"--output_dir={folders[0]}") as pair:
            assert pair.codes() == [0, 0], pair.said(0) + pair.said(1)
        assert "and 390 frozen ones, kept once" in pair.said(0)
        alone(folders[1], *words)
        same(*folders, 1e-4)
        results.append(pfl.Result.load(folders[0] / "fedavg"))
        assert results[-1].stopped == "patience"
    first, second = (result.rounds for result in results)
    assert first < second < 60
    models = [pfl.load_models(folder / "fedavg" / "models.npz") for folder in folders]
    for one, other in zip(*map(jax.tree.leaves, models), strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-4)


def checkpoints(folder, name="fedavg"):
    kept = folder / algorithm_folders.CHECKPOINTS / name
    return sorted(int(p.name) for p in kept.glob("*") if p.name.isdecimal())


def wait_for_rounds(folder, pair, name="fedavg"):
    until = time.monotonic() + MINUTES
    while max(checkpoints(folder, name), default=0) < 3:
        assert time.monotonic() < until
        assert [each.poll() for each in pair.running] == [None, None], pair.said(0) + pair.said(1)
        time.sleep(0.2)


def test_a_signal_to_one_stops_all_and_one_process_goes_on(tmp_path):
    folder = tmp_path / "pair"
    with Started(tmp_path, *LONG, "--devices=2", f"--output_dir={folder}") as pair:
        wait_for_rounds(folder, pair)
        pair.running[1].send_signal(signal.SIGTERM)
        assert pair.codes() == [128 + signal.SIGTERM] * 2, pair.said(0) + pair.said(1)
    assert "the same command continues from there" in pair.said(0)
    done = max(checkpoints(folder))
    assert 3 <= done < ROUNDS
    assert not (folder / "fedavg").exists()
    alone(folder, *LONG)
    same(folder, alone(tmp_path / "straight", *LONG), 1e-4)


ON_HOSTS = ["--client_state=host", "--algorithms=ditto", "--model=mlp", "--num_clients=15",
            "--model_option=hidden=20", "--partition=iid", "--train_samples=10", *LONG]  # fmt: skip


@pytest.mark.parametrize(
    ("dead", "name", "more"), [(0, "fedavg", LONG), (1, "fedavg", LONG), (1, "ditto", ON_HOSTS)]
)
def test_run_continues_after_a_process_died(tmp_path, dead, name, more):
    folder = tmp_path / "pair"
    words = (*more, "--devices=2", f"--output_dir={folder}")
    with Started(tmp_path, *words) as pair:
        wait_for_rounds(folder, pair, name)
        pair.running[dead].kill()
        began = time.monotonic()
        code = pair.running[1 - dead].wait(timeout=MINUTES)
        assert time.monotonic() - began < 60
        time.sleep(1)  # its witness's last word
    assert code not in (0, 2)
    assert "the same command continues" in pair.said(1 - dead)
    assert max(checkpoints(folder, name)) < ROUNDS
    with Started(tmp_path, *words) as pair:
        assert pair.codes() == [0, 0], pair.said(0) + pair.said(1)
    assert "round 1/" not in pair.said(0)  # it went on
    same(folder, alone(tmp_path / "straight", *more), 1e-4, name)


@pytest.mark.parametrize(
    ("words", "own", "said"),
    [
        ([], (["--rounds=3"], ["--rounds=4"]), "All processes need the same flags and data"),
        ([], ([], ["--dataset=npz:nothing.npz"]), "nothing.npz"),
    ],
    ids=["flags", "data"],
)
def test_errors_of_all_processes(tmp_path, words, own, said):
    folder = tmp_path / "pair"
    with Started(tmp_path, *words, f"--output_dir={folder}", own=own) as pair:
        assert pair.codes() == [2, 2], pair.said(0) + pair.said(1)
    for k in (0, 1):
        errors = [line for line in pair.said(k).splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, pair.said(k)
        assert said in errors[0]
    assert not folder.exists()


@pytest.mark.parametrize("quarter", range(4))
def test_every_algorithm_gives_the_numbers_of_one_process(tmp_path, quarter):
    """Two processes of two devices each, which do not divide five clients, nor three of them."""
    names = sorted(pfl.core.ALGORITHMS)[quarter::4]
    port, module = free_port(), "tests.engine.multi_process"
    words = [[sys.executable, "-m", module, str(tmp_path), str(port), "2", str(k), "2", *names]
             for k in range(2)]  # fmt: skip
    pair = [subprocess.Popen(each, cwd=ROOT, env=environment()) for each in words]
    assert [each.wait(timeout=3 * MINUTES) for each in pair] == [0, 0]
    with jax.enable_x64(True):
        for name in names:
            for part in (1.0, 0.6):
                result = np.load(tmp_path / f"{name}-{part}.npz")
                wanted = simulated(name, 1, participation=part)
                assert set(result) == set(wanted)
                for what, array in wanted.items():
                    message = f"{name}: {what}"
                    np.testing.assert_allclose(result[what], array, 1e-9, 1e-9, err_msg=message)
