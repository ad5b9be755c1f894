"""Scripts end with an exit code and no traceback, whatever becomes of their output."""

import ast
import contextlib
import io
import os
import sys
import warnings
from pathlib import Path

import pytest

import fedjax_pfl as pfl
from experiments import compare, run
from experiments.cli import shell
from tests.experiments.small_runs import error_line

ROOT = Path(__file__).resolve().parents[3]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
LINE = "0.5 ± 0.1, Fußball, ─┃⠋, \ud83d\n"


@pytest.fixture
def streams(monkeypatch):
    """`streams(stdout=FILE, ...)` replaces the process's own streams by files."""
    opened = []

    def put(**files):
        for name, file in files.items():
            opened.append(file)
            monkeypatch.setattr(sys, name, file)

    yield put
    for file in opened:
        with contextlib.suppress(OSError):
            file.close()


def left(main) -> int:
    with pytest.raises(SystemExit) as caught:
        shell.leave(main)
    return caught.value.code


def closed_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def much() -> int:
    for _ in range(5000):
        print(LINE, end="")
    return 0


def test_all_scripts_begin_and_leave_in_one_way():
    """Commands by `start.launch`, which is before anything is loaded and leaves for them."""
    files = [*(ROOT / "experiments").rglob("*.py"), *(ROOT / "tools").glob("[ps]*.py")]
    scripts = {path: path.read_text() for path in files}
    scripts = {path: text for path, text in scripts.items()
               if '\nif __name__ == "__main__":' in text}  # fmt: skip
    assert len(scripts) >= 8
    commands = 0
    for path, text in scripts.items():
        first = ast.parse(text).body[1]
        if isinstance(first, ast.If):
            command = path.parent.name if path.stem == "__main__" else path.stem
            assert ast.unparse(first.body[1]) == f"launch('{command}')", path
            commands += 1
        else:
            assert text.endswith('__main__":\n    shell.leave(main)\n'), path
    assert commands == 8


@pytest.mark.parametrize("code", [0, 3])
def test_output_to_a_closed_pipe(streams, tmp_path, code):
    said = (tmp_path / "err").open("w")
    streams(stdout=closed_pipe(), stderr=said)
    done = []

    def main():
        much()
        done.append(True)
        return code

    assert left(main) == code
    assert done and (tmp_path / "err").read_text() == ""


@needs_full
def test_output_to_a_full_disk(streams, tmp_path):
    streams(stdout=FULL.open("w"), stderr=(tmp_path / "err").open("w"))
    assert left(much) == 1
    text = (tmp_path / "err").read_text()
    assert text == "error: standard output can't be written: No space left on device.\n"


@needs_full
def test_neither_stream_can_be_written(streams):
    streams(stdout=closed_pipe(), stderr=FULL.open("w"))

    def main():
        for _ in range(5000):
            print("word", file=sys.stderr)
        return 2

    assert left(main) == 2


def test_streams_that_were_closed_before(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert left(much) == 0


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("ascii", "0.5 +- 0.1, Fu\\xdfball, \\u2500\\u2503\\u280b, \\ud83d"),
        ("latin-1", "0.5 ± 0.1, Fußball, \\u2500\\u2503\\u280b, \\ud83d"),
        ("utf-8", "0.5 ± 0.1, Fußball, ─┃⠋, \\ud83d"),
    ],
)
def test_characters_outside_the_encoding(streams, tmp_path, encoding, line):
    streams(stdout=(tmp_path / "out").open("w", encoding=encoding, errors="strict"))
    assert left(much) == 0
    assert (tmp_path / "out").read_text(encoding=encoding).splitlines() == [line] * 5000


def test_output_to_a_stream_in_memory(streams):
    memory = io.StringIO()
    streams(stdout=memory)
    assert left(lambda: print("word") or 0) == 0
    assert memory.getvalue() == "word\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (pfl.InputError("no such thing"), 2, "error: no such thing\n"),
        (pfl.OutputError("a can't be written: full."), 1, "error: a can't be written: full.\n"),
        (PermissionError(13, "Denied", "data/x"), 1, "error: data/x: Denied.\n"),
        (KeyboardInterrupt(), None, "Interrupted.\n"),
    ],
)
def test_errors_are_one_sentence(capsys, monkeypatch, error, code, said):
    def main():
        raise error

    if code is None:
        monkeypatch.setattr(os, "_exit", sys.exit)
        code = 130
    assert left(main) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("word", ["--rounds={}", "--{}=1", "--algorithms={}", "--set={}"])
def test_long_values_are_not_printed_whole(capsys, word):
    assert run.main(["run", word.format("x" * 100_000)]) == 2
    assert len(capsys.readouterr().err) < 2100


def test_errors_of_flags_are_one_line(capsys):
    for word in ("--target=a\nb", "--nothing\nat all=1", "--flagfile=no\nfile"):
        assert compare.main(["compare", word]) == 2
        assert "Errno" not in error_line(capsys)


def test_warnings_of_this_package_are_a_line():
    """Inside a script; others' are as ever, and so are all of them afterwards."""
    messages = []

    @shell.script()
    def main(argv):
        for place in (pfl.__file__, shell.__file__, __file__):
            messages.append(warnings.formatwarning("it begins\nagain", UserWarning, place, 7))
        return 0

    assert main(["main"]) == 0
    *ours, others = messages
    assert ours == ["warning: it begins again\n"] * 2 and "test_shell.py:7: User" in others
    assert "UserWarning" in warnings.formatwarning("it", UserWarning, pfl.__file__, 7)
