"""The command, and the table of figures in the documentation."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import experiments
import fedjax_pfl as pfl
from experiments.figures import __main__ as command
from experiments.figures.__main__ import main, options_given, parse
from experiments.figures.drawing import FIGURES
from experiments.figures.runs import Run
from experiments.outputs import line_styles
from tests.experiments.small_runs import assert_refused, read_rows

DOCUMENT = Path(experiments.__file__).parents[1] / "docs" / "figures.md"


def call(*words):
    return main(["figures", *words])


def test_list_and_help(capsys):
    assert call("--list") == 0
    out = capsys.readouterr().out
    for name, plot in FIGURES.items():
        assert f"\n{name} " in f"\n{out}"
        assert plot.shows in out
    assert call("--help") == 0
    out = capsys.readouterr().out
    assert "--[no]list:" in out and "--runs:" in out and "(default: 'false')" in out
    assert "Options of accuracy" not in out
    assert call("accuracy/bars", "--help") == 0
    out = capsys.readouterr().out
    assert "--score=final" in out and "whiskers are 95 % intervals" in out and "--runs" in out
    assert_refused(call("accuracy/bar", "--help"), "Did you mean 'accuracy/bars'?", capsys)


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?x")]
)
def test_picture_and_numbers(finished, tmp_path, capsys, ending, start):
    picture, numbers = tmp_path / "new" / f"a.{ending}", tmp_path / "a.csv"
    words = (
        "accuracy/rounds",
        f"--runs={finished / 'main'},{finished / 'iid'}",
        "--algorithms=fedavg",
    )
    assert call(*words, f"--output={picture}", f"--data={numbers}") == 0
    assert picture.read_bytes().startswith(start)
    rows = read_rows(numbers)
    assert {row["label"] for row in rows} == {"fedavg"} and len(rows) == 6
    assert all(0 <= float(row["accuracy_percent"]) <= 100 for row in rows)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {picture.name, "a.csv"}
    assert capsys.readouterr().out.split() == [str(picture), str(numbers)]
    assert call(*words, f"--output={picture}") == 2
    assert "exists already: choose another, or give --overwrite" in capsys.readouterr().err
    before = picture.stat().st_mtime_ns
    assert call(*words, f"--output={picture}", "--overwrite") == 0
    assert picture.stat().st_mtime_ns > before


def test_a_switch_needs_no_value():
    for word, said in (("", "true"), ("=true", "true"), ("=false", "false")):
        _, args = parse(["figures", "accuracy/rounds", f"--best_so_far{word}", "--output=a.png"])
        assert (options_given(args), args.output) == ({"best_so_far": said}, "a.png")


BAD = {
    ("accuracy/roudns",): "Unknown figure 'accuracy/roudns'. Did you mean 'accuracy/rounds'",
    (): "Give the name of a figure",
    ("accuracy/rounds", "accuracy/bars"): "Give one figure's name",
    ("matrices/rounds", "--runs=x", "--seed=many"): "seed must be a whole number, got 'many'",
    ("accuracy/rounds", "--seed=1"): "option of figure 'accuracy/rounds' 'seed'",
    ("accuracy/rounds",): "give their folders with --runs=DIR",
}


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_figures_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert_refused(call(*words, "--output=out.png"), BAD[words], capsys)
    assert list(tmp_path.iterdir()) == []


def test_endings_of_files(capsys):
    assert_refused(call("accuracy/bars"), "--output=FILE.png", capsys)
    assert call("accuracy/bars", "--output=bars.bmp") == 2
    assert "--output must end in .png or .pdf or .svg" in capsys.readouterr().err
    assert_refused(call("accuracy/bars", "--data=bars.npy"), "--data must end in .csv", capsys)


def colours(chart):
    return {line.get_color() for axes in chart.axes for line in axes.get_lines()}


def test_title_size_and_labels(finished, tmp_path, capsys, monkeypatch):
    """No sentence in the picture unless it is asked for; it is printed instead."""
    seen = []
    monkeypatch.setattr(command, "write", lambda drawing, *files: seen.append(drawing.figure))
    (tmp_path / "labels").write_text("feddwa=FedDWA (ours)\n")
    words = ("accuracy/rounds", f"--runs={finished / 'main'}", f"--output={tmp_path / 'a.png'}")
    assert call(*words) == 0
    caption = "caption: personalized model, test samples, client 1; mean of 2 seeds"
    assert caption in capsys.readouterr().err
    assert call(*words, "--title=Mine", "--size=3.5x2.5", f"--labels={tmp_path / 'labels'}") == 0
    assert call(*words, "--title=auto") == 0
    assert [chart.get_suptitle()[:4] for chart in seen[:3]] == ["", "Mine", "pers"]
    assert seen[1].get_size_inches().tolist() == [3.5, 2.5]
    texts = [text.get_text() for text in seen[1].legends[0].get_texts()]
    assert any(text.startswith("FedDWA (ours)  ") for text in texts)
    assert call(*words, "--colors=feddwa=#d62728") == 0
    (changed,) = colours(seen[3]) - colours(seen[0])
    assert changed == "#d62728"
    for wrong in ("feddva=red", "feddwa=nored", "feddwa"):
        assert call(*words, f"--colors={wrong}") == 2
    assert "--colors takes NAME=COLOUR" in capsys.readouterr().err
    assert_refused(call(*words, "--size=3"), "--size must be WIDTHxHEIGHT in inches", capsys)


def test_a_picture_of_one_point_is_refused(finished, tmp_path, monkeypatch, capsys):
    last = property(lambda run: replace(pfl.Result.load(run.folder), eval_rounds=np.array([3])))
    monkeypatch.setattr(Run, "result", last)
    for figure in ("accuracy/rounds", "accuracy/cost"):
        assert call(figure, f"--runs={finished / 'main'}", f"--output={tmp_path / 'a.png'}") == 2
        assert f"{figure} would be a picture of one point" in capsys.readouterr().err


def test_document_has_every_figure():
    """`tests/docs/test_commands.py` parses its commands."""
    text = DOCUMENT.read_text()
    assert set(re.findall(r"\[`([a-z]+/[a-z_]+)`\]", text)) == set(FIGURES)
    drawn = re.findall(r"experiments\.figures ([a-z]+/[a-z_]+)", text)
    assert set(drawn) == set(FIGURES)


def test_style_numbers():
    count = len(pfl.core.ALGORITHMS)
    assert len({line_styles.number(name) for name in pfl.core.ALGORITHMS}) == count
    assert line_styles.number("mine") == line_styles.number("mine") >= count
    assert line_styles.numbers(["fedavg", "feddwa", "fedavg", "feddwa"]) == [1, 3, 0, 2]
    models = line_styles.of_models(["global", "mine", "personalized"])
    assert models == [1, len(line_styles.MODELS), 0]
