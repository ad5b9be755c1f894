"""Only commands request huge pages, before anything is loaded."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import experiments
from experiments.cli import start

ROOT = Path(experiments.__file__).parents[1]


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """A command's start where huge pages are a choice; what it would be replaced by."""
    made = []
    monkeypatch.setattr(os, "execve", lambda *call: made.append(call))
    monkeypatch.setattr(sys, "argv", ["/here/experiments/run.py", "--rounds=3"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "-m", "experiments.run", "--rounds=3"])
    monkeypatch.setattr(start, "MODE", tmp_path / "enabled")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    return made


def installed(monkeypatch):
    """The same as an installed command."""
    monkeypatch.setattr(sys, "argv", ["/bin/pfl-run", "--rounds=3"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "/bin/pfl-run", "--rounds=3"])


def test_a_command_is_started_anew_with_its_words(calls, monkeypatch):
    start.ask_for_huge_pages("run")
    installed(monkeypatch)
    start.ask_for_huge_pages("run")
    module, script = calls
    for program, words, environment in calls:
        assert program == words[0] == sys.executable
        assert environment == os.environ | {"GLIBC_TUNABLES": start.TUNABLE}
    assert module[1][1:] == ["-u", "-m", "experiments.run", "--rounds=3"]
    assert script[1][1:] == ["-u", "/bin/pfl-run", "--rounds=3"]


def test_once(calls, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", start.TUNABLE)
    start.ask_for_huge_pages("run")
    assert not calls


@pytest.mark.parametrize("mode", ["[always] madvise never", "always madvise [never]", None])
def test_not_where_it_changes_nothing(calls, mode):
    if mode is None:
        start.MODE.unlink()
    else:
        start.MODE.write_text(mode)
    start.ask_for_huge_pages("run")
    assert not calls


def test_not_in_another_program_that_plays_the_command(calls, monkeypatch):
    """Such as IPython's `%run -m experiments.run`, whose session would be lost."""
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/ipython"])
    start.ask_for_huge_pages("run")
    assert not calls


def test_an_import_does_nothing(calls):
    importlib.reload(experiments)
    importlib.reload(importlib.import_module("experiments.compare"))
    assert not calls


def test_a_real_one():
    done = subprocess.run(
        [*start.words("benchmark"), "--list"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "FedAvg" in done.stdout


def test_what_a_command_is_called(monkeypatch):
    assert start.called("run") == "python -m experiments.run"
    monkeypatch.setattr(start, "PACKAGE", start.INSTALLED)
    assert start.called("run") == "pfl-run"
    assert start.words("run")[1:] == ["-m", "fedjax_pfl_experiments.run"]
