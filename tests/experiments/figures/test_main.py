"""The command, and the table of figures in the documentation."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import experiments
import fedjax_pfl as pfl
from experiments.cli import flags
from experiments.cli.build import load_inputs, prepare
from experiments.figures.__main__ import main, options_given, parse
from experiments.figures.drawing import FIGURES
from experiments.figures.runs import Run
from fedjax_pfl.data.partitions.rule_registry import parse_options
from fedjax_pfl.results import plots
from tests.experiments.small_runs import read_rows

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
    assert "--runs" in out and "Options of accuracy" not in out
    assert call("accuracy/bars", "--help") == 0
    out = capsys.readouterr().out
    assert "--score=final" in out and "whiskers are 95 % intervals" in out and "--runs" in out
    assert call("accuracy/bar", "--help") == 2
    assert "Did you mean 'accuracy/bars'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?x")]
)
def test_picture_and_numbers(folder, tmp_path, capsys, ending, start):
    picture, numbers = tmp_path / "new" / f"a.{ending}", tmp_path / "a.csv"
    words = ("accuracy/rounds", f"--runs={folder / 'main'},{folder / 'iid'}", "--algorithms=fedavg")
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


def test_options_are_the_figures_own(folder, tmp_path):
    data = tmp_path / "omega.csv"
    assert call("waffle/omega", f"--data={data}", "--delta_omega=2", "--rounds=4") == 0
    assert data.read_text().splitlines()[1:3] == ["2.0,1,0.7310585786300049", "2.0,2,0.5"]
    words = (f"--runs={folder}", "--algorithms=cwfedavg", f"--output={tmp_path / 'x.png'}")
    assert call("accuracy/setting", *words, "--x=cwfedavg.wdr_weight", "--group=rounds") == 0


BAD = {
    ("waffle/wieghts",): "Unknown figure 'waffle/wieghts'. Did you mean 'waffle/weights'",
    (): "Give the name of a figure",
    ("waffle/omega", "waffle/weights"): "Give one figure's name",
    ("waffle/omega", "--runs=x"): "draws a formula: leave --runs out",
    ("waffle/omega", "--rounds=many"): "rounds must be a whole number, got 'many'",
    ("waffle/omega", "--rounds=0"): "--rounds must be at least 1",
    ("waffle/omega", "--client=1"): "option of figure 'waffle/omega' 'client'",
    ("waffle/omega", "--colour=red"): "Unknown command line flag 'colour'",
    ("waffle/weights",): "give their folders with --runs=DIR",
    ("waffle/weights", "--runs=nowhere"): "No folder nowhere",
    ("waffle/weights", "--runs={main}", "--algorithms=local"): "None of the runs has the record",
    ("feddwa/guidance", "--runs={iid}"): "score_guidance=true",
    ("spfl/fine_tuning", "--runs={main}"): "--adapt_steps=10 --adapt_when=last",
    ("feddwa/neighbours", "--runs={main}", "--top_k=0"): "--top_k must be at least 1",
    ("accuracy/models", "--runs={iid}", "--by=rounds"): "Unknown value of --by 'rounds'",
    ("accuracy/setting", "--runs={iid}"): "Choose a setting with --x=NAME",
}


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_bad_input(words, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    places = {"main": folder / "main", "iid": folder / "iid"}
    given = [word.format(**places) for word in words]
    assert call(*given, "--output=out.png") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and BAD[words] in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written(tmp_path, capsys):
    assert call("waffle/omega") == 2
    assert "--output=FILE.png" in capsys.readouterr().err
    assert call("waffle/omega", "--output=omega.bmp") == 2
    assert "--output must end in .png or .pdf or .svg" in capsys.readouterr().err
    assert call("waffle/omega", "--data=omega.npy") == 2
    assert "--data must end in .csv" in capsys.readouterr().err
    (tmp_path / "file").write_text("x")
    assert call("waffle/omega", f"--output={tmp_path / 'file' / 'a.png'}") == 2
    assert "not a writable folder" in capsys.readouterr().err


def commands(text):
    """The document's commands, continued lines joined, each loop's variable at its first value."""
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        block = block.replace("\\\n", " ")
        for name, first in re.findall(r"for (\w+) in (\S+)", block):
            block = re.sub(rf"\$\{{?{name}\b\}}?", first.rstrip(";"), block)
        yield from (line.strip() for line in block.splitlines())


def test_the_document_has_every_figure_and_no_other():
    table = set(re.findall(r"\[`([a-z]+/[a-z_]+)`\]", DOCUMENT.read_text()))
    lines = commands(DOCUMENT.read_text())
    drawn = [one for one in lines if "experiments.figures " in one and "--list" not in one]
    names = set()
    for line in drawn:
        words = shlex.split(line.partition("experiments.figures ")[2])
        name, args = parse(["figures", *words])
        parse_options(options_given(args), FIGURES[name].options, "option")
        assert (args.output or "").endswith(".png") and (args.runs or name == "waffle/omega")
        names.add(name)
    assert names == table == set(FIGURES)
    outputs = [re.search(r"--output=(\S+)", line)[1] for line in drawn]
    assert len(set(outputs)) == len(outputs)


def test_the_documents_runs_can_be_run():
    """Everything but the rounds: flags, partitions, algorithms, models."""
    lines = [line for line in commands(DOCUMENT.read_text()) if line.startswith("$RUN ")]
    (common,) = re.findall(r'RUN="python -m experiments\.run (.*)"', DOCUMENT.read_text())
    assert len(lines) >= 10
    for line in lines:
        words = [w for w in shlex.split(line)[1:] if not w.startswith("--output_dir")]
        prepare(load_inputs(flags.parse(["run", *common.split(), *words])))


def colours(chart):
    return {line.get_color() for axes in chart.axes for line in axes.get_lines()}


def test_title_size_and_labels(folder, tmp_path, capsys, monkeypatch):
    """No sentence in the picture unless it is asked for; it is printed instead."""
    from experiments.figures import __main__ as command

    seen = []
    monkeypatch.setattr(command, "write", lambda drawing, *files: seen.append(drawing.figure))
    (tmp_path / "labels").write_text("feddwa=FedDWA (ours)\n")
    words = ("accuracy/rounds", f"--runs={folder / 'main'}", f"--output={tmp_path / 'a.png'}")
    assert call(*words) == 0
    assert (
        "caption: personalized model, test samples, client 1; mean of 2 seeds"
        in capsys.readouterr().err
    )
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
    assert call(*words, "--size=3") == 2
    assert "--size must be WIDTHxHEIGHT in inches" in capsys.readouterr().err


def test_an_algorithm_has_one_style_everywhere(folder):
    from experiments.figures import accuracy, comparison
    from experiments.figures.loading import find
    from experiments.outputs import line_styles

    runs = find([str(folder / "main")])
    for some in (runs, runs[::-1], runs[1:3]):
        wanted = [plots.style(line_styles.number(run.algorithm))["color"] for run in some]
        axes = accuracy.of_models(some, models="personalized", by="model").figure.axes[0]
        assert [line.get_color() for line in axes.get_lines()] == wanted
        axes = accuracy.by_client(some).figure.axes[0]
        points = [one.lines[0].get_color() for one in axes.containers]
        assert len(set(points)) == len(points)  # a later one of the same colour has another
        assert all(a == b for a, b in zip(points, wanted, strict=True) if wanted.count(b) == 1)
        for draw in (accuracy.by_round, comparison.by_cost):
            lines = {line.get_label(): line for line in draw(some).figure.axes[0].get_lines()}
            for run in some:
                wanted = plots.style(line_styles.number(run.algorithm))
                assert lines[run.algorithm].get_color() == wanted["color"]
    assert len({line_styles.number(name) for name in pfl.core.ALGORITHMS}) == len(
        pfl.core.ALGORITHMS
    )
    assert line_styles.number("mine") == line_styles.number("mine") >= len(pfl.core.ALGORITHMS)
    assert line_styles.numbers(["fedavg", "feddwa", "fedavg", "feddwa"]) == [1, 3, 0, 2]
    assert line_styles.of_models(["global", "mine", "personalized"]) == [
        1,
        len(line_styles.MODELS),
        0,
    ]


def test_a_picture_of_one_point_is_refused(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Run, "eval_rounds", np.array([3]))
    for figure in ("accuracy/rounds", "accuracy/cost"):
        assert call(figure, f"--runs={folder / 'main'}", f"--output={tmp_path / 'a.png'}") == 2
        assert f"{figure} would be a picture of one point" in capsys.readouterr().err


def test_help_has_the_flags_and_defaults(capsys):
    assert call("--help") == 0
    text = capsys.readouterr().out
    assert "--[no]list:" in text and "--runs:" in text and "(default: 'false')" in text
