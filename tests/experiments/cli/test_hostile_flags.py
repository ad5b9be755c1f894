"""Flagfiles that never end and paths that nobody has: one sentence, and nothing is made."""

import importlib
import os

import pytest

from experiments.cli import flags
from fedjax_pfl.utils.errors import InputError
from tests.experiments.small_runs import error_line

SCRIPTS = ["run", "sweep", "compare", "partition", "reproduce", "figures.__main__"]


@pytest.fixture
def main(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda name, *words: importlib.import_module(f"experiments.{name}").main([name, *words])


@pytest.mark.parametrize("script", SCRIPTS)
def test_flagfiles_are_small_regular_files_of_text(script, main, tmp_path, capsys):
    os.mkfifo("pipe")
    (tmp_path / "words").write_bytes(b"--rounds=\xff\n")
    (tmp_path / "outer").write_text("--flagfile=pipe\n")
    (tmp_path / "marked").write_text("--rounds=2\n", encoding="utf-8-sig")
    (tmp_path / "ring").write_text("--flagfile=again\n")
    (tmp_path / "again").write_text("--flagfile=ring\n")
    with open("large", "wb") as file:
        file.truncate(2**40)  # a hole: it takes no room
    before = sorted(os.listdir())
    for name, said in {
        "pipe": "pipe must be a regular file, but it is a named pipe",
        "outer": "pipe must be a regular file, but it is a named pipe",
        "/dev/zero": "/dev/zero must be a regular file, but it is a device",
        "large": "--flagfile=large has 1,099,511,627,776 bytes: it is not a flagfile",
        "marked": "--flagfile=marked begins with a byte order mark: save it as UTF-8 without one",
        "ring": "--flagfile=ring includes itself",
        "words": "--flagfile=words is not UTF-8 text",
        "a\0b": "--flagfile must be a path in UTF-8 without NUL",
    }.items():
        assert main(script, f"--flagfile={name}") == 2
        assert said in error_line(capsys), name
    assert sorted(os.listdir()) == before


def test_flagfiles_that_include_others_twice_are_bounded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for k in range(30):  # read to the end that were 2**30 files
        (tmp_path / f"f{k}").write_text(f"--flagfile=f{k + 1}\n" * 2)
    (tmp_path / "f30").write_text("--rounds=1\n")
    with pytest.raises(InputError, match="More than 1000 flagfiles include one another"):
        flags.parse(["run", "--flagfile=f0"])
    assert flags.parse(["run", "--flagfile=f25"]).rounds == 1


@pytest.mark.parametrize(
    ("script", "words", "flag"),
    [
        ("run", ["--partition_file=~nobody_here/a"], "--partition_file"),
        ("run", ["--data_dir=~nobody_here/a", "--dataset=npz"], "data_dir"),
        ("partition", ["--import_split=flower:~nobody_here/a"], "Path of a split"),
        ("compare", ["--runs=~nobody_here/a"], "The folder of a run"),
    ],
)
def test_home_of_an_unknown_user(script, words, flag, main, tmp_path, capsys):
    assert main(script, *words) == 2
    text = f"error: {flag} is '~nobody_here/a', but there is no such home folder.\n"
    assert capsys.readouterr().err == text
    assert list(tmp_path.iterdir()) == []
