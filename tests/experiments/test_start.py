"""Only commands request huge pages, before anything is loaded."""

import importlib
import os
import sys

import pytest

import experiments
from experiments.cli import start

MODULE = ["python", "-u", "-m", "experiments.run", "--rounds=3"]
INSTALLED = ["python", "-u", "/bin/pfl-run", "--rounds=3"]


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """A command's start where huge pages are a choice; what it would be replaced by."""
    made = []
    monkeypatch.setattr(os, "execve", lambda *call: made.append(call))
    monkeypatch.setattr(sys, "argv", ["/here/experiments/run.py", "--rounds=3"])
    monkeypatch.setattr(sys, "orig_argv", MODULE)
    monkeypatch.setattr(start, "MODE", tmp_path / "enabled")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    return made


@pytest.mark.parametrize("words", [MODULE, INSTALLED], ids=["checkout", "installed"])
def test_a_command_is_started_anew_with_its_words(calls, monkeypatch, words):
    monkeypatch.setattr(sys, "orig_argv", words)
    if words is INSTALLED:
        monkeypatch.setattr(sys, "argv", words[2:])
    start.request_huge_pages("experiments.run")
    ((program, command, environment),) = calls
    assert program == command[0] == sys.executable and command[1:] == words[1:]
    assert environment == os.environ | {"GLIBC_TUNABLES": start.TUNABLE}


@pytest.mark.parametrize("mode", ["[always] madvise never", "always madvise [never]", None])
def test_huge_pages_are_not_requested_in_vain(calls, mode):
    if mode is None:
        start.MODE.unlink()
    else:
        start.MODE.write_text(mode)
    start.request_huge_pages("experiments.run")
    assert not calls


def test_not_twice_and_not_for_an_import_or_another_program(calls, monkeypatch):
    """Such as IPython's `%run -m experiments.run`, whose session would be lost."""
    importlib.reload(experiments)
    importlib.reload(importlib.import_module("experiments.compare"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "orig_argv", ["python", "/bin/ipython"])
        start.request_huge_pages("experiments.run")
    monkeypatch.setenv("GLIBC_TUNABLES", start.TUNABLE)
    start.request_huge_pages("experiments.run")
    assert not calls


def test_called(monkeypatch):
    assert start.called("run") == "python -m experiments.run"
    monkeypatch.setattr(start, "PACKAGE", start.INSTALLED)
    assert start.called("run") == "pfl-run"
    assert start.words("run")[1:] == ["-m", "fedjax_pfl_experiments.run"]
