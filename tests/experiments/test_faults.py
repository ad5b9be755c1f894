"""System errors during a run: one error line, exit code 1, and finished work is kept."""

import contextlib
import ctypes
import errno
import os
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import run
from experiments.cli import run_folder
from fedjax_pfl.data import atomic_files
from tests.experiments.small_runs import SMALL, error_line, run_in

from .conftest import drawing
from .stopped_runs import assert_same_arrays, watching

CACHE = "--compilation_cache="
WORDS = ("--algorithms=local,feddwa", *SMALL)
GOES_ON = "Finished work is kept; once this is fixed, the same command continues from there."


def call(folder, *words):
    return run_in(folder, *WORDS, *words)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "out"
    with drawing():
        assert call(folder) == 0
    return folder


def assert_same(folder, finished):
    ours, theirs = ({path.relative_to(at) for path in at.rglob("*")} for at in (folder, finished))
    assert ours == theirs
    assert_same_arrays(folder, finished, ("local", "feddwa"))


FILES = (
    "run.json", "partition.npz", "partition.png", "config.json", "result.npz", "result.json",
    "metrics.csv", "mixing.png", "models.npz", "summary.json",
    "accuracy.png", "gains.png", "comparison.csv", "comparison.md",
)  # fmt: skip


def test_a_full_disk_at_every_file(finished, tmp_path, monkeypatch, capsys):
    """The same command again and again, with the disk full at the next file each time."""
    folder, rename = tmp_path / "out", os.replace
    for name in FILES:

        def full(source, target, wanted=name):
            if Path(target).name == wanted and "local" not in Path(target).parts[-2]:
                raise OSError(errno.ENOSPC, "No space left on device")
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(atomic_files.os, "replace", full)
            assert call(folder) == 1, name
        printed = capsys.readouterr()
        assert f"{name} can't be written: No space left on device. {GOES_ON}\n" in printed.err
        # A table of the result that has no file yet.
        assert bool(re.search(r"\bfeddwa .* [\d.]+ ", printed.out)) == (name not in FILES[:3])
        left = [path for path in folder.rglob(".part-*") if path.is_file()]
        assert not left
        assert (folder / "feddwa" / "summary.json").exists() == (name in FILES[-4:])
    before = (folder / "local" / "summary.json").stat().st_mtime_ns
    assert call(folder) == 0
    assert (folder / "local" / "summary.json").stat().st_mtime_ns == before
    assert_same(folder, finished)


@pytest.mark.parametrize("kept", [60, 0])
def test_a_folder_deleted_during_the_run(finished, tmp_path, capsys, kept):
    folder, words = tmp_path / "out", f"--checkpoint_seconds={kept}"

    def harm(name, progress):
        if name == "feddwa":
            shutil.rmtree(folder, ignore_errors=True)

    with watching(harm):
        assert call(folder, words) == 1
    assert "can't be written: " in error_line(capsys)
    shutil.rmtree(folder, ignore_errors=True)
    assert call(folder, words) == 0
    assert_same(folder, finished)


def test_partly_written_files_are_written_again(finished, tmp_path):
    folder = tmp_path / "out"
    assert call(folder) == 0
    (folder / "comparison.md").unlink()
    for name in ("partition.npz", "comparison.md", "run.json"):
        (folder / f".part-{name}").write_text("half of it")
    assert call(folder) == 0
    (folder / ".part-run.json").unlink()
    assert_same(folder, finished)


def test_dangling_links_in_a_folder(finished, tmp_path, capsys):
    folder = tmp_path / "out"
    shutil.copytree(finished, folder)
    (folder / "comparison.md").unlink()
    for name in ("checkpoints", "feddwa", run_folder.LOCK):
        saved = (folder / name).exists() and shutil.move(folder / name, tmp_path / "saved")
        (folder / name).symlink_to(tmp_path / "nowhere")
        assert call(folder) == 2
        assert f"{folder / name} is a link that leads nowhere: delete it." in error_line(capsys)
        (folder / name).unlink()
        if saved:
            shutil.move(tmp_path / "saved", folder / name)
    assert call(folder) == 0
    assert_same(folder, finished)


def test_an_unwritable_compilation_cache(finished, tmp_path, capsys):
    """The run goes on without it, with a warning."""
    (tmp_path / "file").write_text("mine")
    before = jax.config.jax_compilation_cache_dir
    cache = tmp_path / "file" / "x"
    assert call(tmp_path / "out", f"{CACHE}{cache}") == 0
    assert capsys.readouterr().err == (
        f"warning: no compiled programs are kept: {cache} can't be written: Not a directory.\n"
    )
    assert jax.config.jax_compilation_cache_dir == before
    assert_same(tmp_path / "out", finished)
    assert call(tmp_path / "new", f"{CACHE}~nobody-of-that-name/x") == 2
    assert "--compilation_cache is '~nobody-of-that-name/x', but there is no" in error_line(capsys)


def test_a_user_without_a_home_directory(finished, tmp_path, capsys, monkeypatch):
    def nowhere(path):
        if str(path).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return path

    monkeypatch.setattr(Path, "expanduser", nowhere)
    assert run_in(tmp_path / "out", *(word for word in WORDS if word != CACHE)) == 0
    assert "warning: no compiled programs are kept: " in capsys.readouterr().err
    assert_same(tmp_path / "out", finished)


class Capabilities(ctypes.Structure):
    """The data of Linux's capget and capset: 64 bits of each set, in two halves."""

    _fields_ = [(f"{name}{half}", ctypes.c_uint32) for half in (0, 1)
                for name in ("effective", "permitted", "inheritable")]  # fmt: skip


@pytest.fixture
def bound():
    """Applies permissions to root, too."""
    if os.name != "posix" or os.geteuid() != 0:
        yield
        return
    libc, capabilities = ctypes.CDLL(None, use_errno=True), Capabilities()
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    if libc.capget(header, ctypes.byref(capabilities)):
        pytest.skip("permissions don't bind root, and its rights can't be asked for")
    before = capabilities.effective0
    capabilities.effective0 &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, ctypes.byref(capabilities)) == 0
    yield
    capabilities.effective0 = before
    assert libc.capset(header, ctypes.byref(capabilities)) == 0


@contextlib.contextmanager
def mode(path, bits):
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


def test_folders_without_permission(tmp_path, bound, capsys):
    shut, read, file = (tmp_path / name for name in ("shut", "read", "d.npz"))
    shut.mkdir()
    read.mkdir()
    np.savez(file, x_train=np.zeros((4, 2)), y_train=np.zeros(4, int))
    shutil.copy(file, shut)
    output = f"--output_dir={tmp_path / 'out'}"
    with mode(shut, 0), mode(read, 0o555), mode(file, 0):
        for code, place, *words in (
            (2, read, f"--output_dir={read / 'out'}"),
            (2, shut, f"--output_dir={shut / 'out'}"),
            (2, shut, output, f"--dataset=npz:{shut / 'd.npz'}"),
            (2, file, output, f"--dataset=npz:{file}"),
            (2, shut, output, "--dataset=mnist", f"--data_dir={shut}"),
            (2, shut, output, f"--partition_file={shut / 'p.npz'}"),
        ):
            assert run.main(["run", *WORDS, *words]) == code, words
            assert str(place) in error_line(capsys), words
    assert not (tmp_path / "out").exists()
