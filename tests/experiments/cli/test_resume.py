"""The same command continues a stopped run, which ends bit by bit the same.

`test_kills.py` kills processes; here signals come in this one.
"""

import json
import re
import shutil
import signal

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import run
from experiments.cli import algorithm_folders, build, identity, run_folder
from experiments.outputs import run_files
from tests.experiments.small_runs import SMALL, assert_refused, read_json, stamps
from tests.experiments.stopped_runs import assert_same_arrays, default_folder, killing

ROUNDS = 6
WORDS = (*SMALL, "--checkpoint_seconds=0", f"--rounds={ROUNDS}", "--eval_every=2")
TWO = "--algorithms=local,feddwa"


def call(*words):
    return run.main(["run", *WORDS, *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert call(TWO, f"--output_dir={folder}") == 0
    return folder


def assert_same(folder, finished):
    """All numbers of both algorithms, to the bit."""
    files = ("result.npz", "models.npz")
    assert_same_arrays(folder, finished, ("local", "feddwa"), files)
    for name in ("local", "feddwa"):
        ours, theirs = (read_json(at / name / "summary.json") for at in (folder, finished))
        assert ours["accuracy"] == theirs["accuracy"]
    assert not (folder / algorithm_folders.CHECKPOINTS).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_and_resume(finished, tmp_path, capsys, number):
    folder, handler = tmp_path / "out", signal.getsignal(number)
    words = (TWO, f"--output_dir={folder}")
    with killing("feddwa", 1, number):
        assert call(*words) == 128 + number
    text = capsys.readouterr().err
    assert f"Finished algorithms: local, and the next one after round 1. Kept in {folder}" in text
    assert not (folder / "comparison.md").exists() and not (folder / "feddwa").exists()
    assert signal.getsignal(number) == handler  # which may be to ignore it: a shell's background
    before = (folder / "local" / "summary.json").stat().st_mtime_ns
    (folder / ".part-feddwa").mkdir()  # as if it had been killed while writing
    assert call(*words) == 0
    assert (folder / "local" / "summary.json").stat().st_mtime_ns == before
    assert_same(folder, finished)


def test_a_finished_run_is_shown_and_left_alone(finished, capsys):
    before = stamps(finished)
    assert call(TWO, f"--output_dir={finished}", "--checkpoint_seconds=5") == 0
    text = capsys.readouterr().out
    assert "This run is finished" in text
    assert "feddwa " in text and "local " in text
    assert stamps(finished) == before


def test_other_flags_are_refused_with_the_difference(finished, capsys):
    before = stamps(finished)
    assert call(TWO, f"--output_dir={finished}", "--rounds=7", "--set=feddwa.top_k=2") == 2
    text = capsys.readouterr().err
    assert "--rounds was 6 and is 7" in text
    assert "feddwa.top_k was 5 and is 2" in text
    assert text.count(" was ") == 2 and stamps(finished) == before


def test_resume_in_a_folder_that_is_no_run(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert_refused(call(TWO, f"--output_dir={tmp_path}"), "is not a run to continue", capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.skipif(run_folder.fcntl is None, reason="no file locks on this system")
def test_two_processes_can_not_write_to_one_folder(tmp_path, capsys):
    folder = tmp_path / "out"
    folder.mkdir()
    with (folder / ".lock").open("w") as lock:
        run_folder.fcntl.flock(lock, run_folder.fcntl.LOCK_EX)
        args = run.flags.parse(["run", *WORDS, TWO])
        flags = build.load_inputs(args).identity
        record = {"version": pfl.__version__, "flags": flags}
        record[run_folder.DIGEST] = run_folder.digest_of(record)
        (folder / "run.json").write_text(json.dumps(record))
        assert call(TWO, f"--output_dir={folder}") == 2
    assert f"Another process is writing to {folder}" in capsys.readouterr().err


def test_default_folder():
    def name(*words):
        return default_folder(["run", *WORDS, *words])

    assert name() == name("--checkpoint_seconds=9", "--compilation_cache=x", "--data_dir=y")
    assert len({name(), name("--seed=1"), name("--set=feddwa.top_k=2")}) == 3
    assert str(name()).startswith("runs/digits-dirichlet-")


def test_resume_without_a_record(tmp_path):
    """An empty folder, or one with no more than its lock, is taken; any other is not."""
    args = run.flags.parse(["run", *WORDS, TWO])
    for name in ("", ".lock", ".part-run.json"):
        if name:
            (tmp_path / name).touch()
        run_folder.check(tmp_path, identity.run_identity(args))
    (tmp_path / "partition.npz").touch()
    with pytest.raises(pfl.InputError, match="is not a run to continue"):
        run_folder.check(tmp_path, identity.run_identity(args))


def test_comparison_is_written_last(finished, tmp_path, monkeypatch):
    results = {"local": pfl.Result.load(finished / "local")}

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedjax_pfl.results.plots.accuracy_curves", killed)
        with pytest.raises(KeyboardInterrupt):
            run_files.write_comparison(tmp_path, results, "title")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "summary.json").touch()
    assert not run_folder.finished(tmp_path, ["local"])
    run_files.write_comparison(tmp_path, results, "title")
    assert run_folder.finished(tmp_path, ["local"])


def test_a_shorter_result_stays_until_the_longer_one_is_made(finished, tmp_path):
    folder, words = tmp_path / "out", ("--algorithms=local", f"--output_dir={tmp_path / 'out'}")
    assert call(*words, "--rounds=4") == 0
    before = (folder / "local" / "result.json").read_bytes()
    with killing("local", 1, signal.SIGINT):
        assert call(*words) == 130
    assert (folder / "local" / "result.json").read_bytes() == before
    assert not (folder / "comparison.md").exists()
    assert call(*words) == 0
    assert_same_arrays(folder, finished, ("local",))


@pytest.mark.parametrize("kept", [True, False])
def test_more_rounds_of_a_finished_run(finished, tmp_path, capsys, kept):
    """From its last state or from the beginning: the same bits as one long run."""
    folder = tmp_path / "out"
    words = [TWO, f"--output_dir={folder}", *["--keep_state"] * kept]
    assert call(*words, "--rounds=4") == 0
    assert (folder / algorithm_folders.CHECKPOINTS / "feddwa").exists() is kept
    capsys.readouterr()
    assert call(*words) == 0
    text, noted = capsys.readouterr()
    assert ("no state of the 4 rounds before was kept" in noted) is not kept
    first = min(int(n) for n in re.findall(rf"feddwa: round (\d+)/{ROUNDS}", text))
    assert first >= (4 if kept else 1)
    shutil.rmtree(folder / algorithm_folders.CHECKPOINTS, ignore_errors=True)
    for name in ("local", "feddwa"):
        ours, theirs = (pfl.Result.load(place / name) for place in (folder, finished))
        for key in theirs.scores:
            np.testing.assert_array_equal(ours.scores[key], theirs.scores[key])
    assert_same_arrays(folder, finished, ("local", "feddwa"), ["models.npz"])
    assert call(TWO, f"--output_dir={folder}", "--rounds=4") == 2
    assert f"--rounds was {ROUNDS} and is 4" in capsys.readouterr().err


@pytest.mark.costly
def test_patience_of_a_run(tmp_path, capsys):
    words = (TWO, f"--output_dir={tmp_path / 'out'}", "--rounds=60", "--patience=4")
    assert_refused(call(*words), "no client has validation samples", capsys)
    assert not (tmp_path / "out").exists()
    assert call(*words, "--validation_fraction=0.2") == 0
    result = pfl.Result.load(tmp_path / "out" / "local")
    assert result.stopped == "patience" and result.rounds < 60
    text = f"stopped after round {result.rounds} of 60: its validation accuracy had stopped rising"
    assert text in capsys.readouterr().out
    assert text in (tmp_path / "out" / "comparison.md").read_text()
    assert call(*words, "--validation_fraction=0.2") == 0
    assert "This run is finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("digest"),
        lambda record: record["flags"].update(rounds="4"),
        lambda record: record.update(digest=5),
    ],
)
def test_resume_with_a_changed_record(finished, tmp_path, change):
    folder = tmp_path / "out"
    folder.mkdir()
    record = json.loads((finished / run_folder.RECORD).read_text())
    change(record)
    (folder / run_folder.RECORD).write_text(json.dumps(record))
    args = run.flags.parse(["run", *WORDS, TWO])
    with pytest.raises(pfl.InputError, match="it was changed after it was written"):
        run_folder.check(folder, identity.run_identity(args))
