"""Studies from the command: cells, tables, the figure, continuing, and refusals."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as pfl
from experiments import run, study
from experiments.cli import flags, presets
from experiments.figures.loading import read
from experiments.figures.pivots import Pivot
from experiments.grid import sections
from experiments.grid import study_report as report
from fedjax_pfl.utils.errors import InputError
from tests.experiments.small_runs import SMALL, read_rows

from .conftest import drawing
from .written_runs import rewrite, write_run

WORDS = (*SMALL, "--eval_every=2",
         "--measures=accuracy,worst_decile,attackers_weight,megabytes_up")  # fmt: skip
SETTINGS = ["--setting=no attack:", "--setting=sign flip: --attack=sign_flip --attackers=3"]
ROWS = [
    "--row=fedavg: --algorithms=fedavg",
    "--row=fedavg, median: --algorithms=fedavg --aggregator=median",
]


def call(*words):
    return study.main(["study", *WORDS, *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "out"
    with drawing():
        assert call(*SETTINGS, *ROWS, f"--output_dir={folder}") == 0
    assert (folder / "study.png").read_bytes().startswith(b"\x89PNG")
    return folder


def numbers(folder):
    lines = read_rows(folder / "study.csv")
    return {
        (one["measure"], one["row"], one["setting"], int(one["seed"])): float(one["value"] or "nan")
        for one in lines
    }


def test_numbers_of_a_study(finished):
    """Each number is that of the cell's run, over the clients that all runs score."""
    found = numbers(finished)
    assert len(found) == 4 * 2 * 2 * 2
    for folder, row in (("fedavg", "fedavg"), ("fedavg_median", "fedavg, median")):
        for place, setting in (("no_attack", "no attack"), ("sign_flip", "sign flip")):
            result = pfl.Result.load(finished / place / folder / "fedavg")
            scores = 100 * result.values("personalized")[:, 0, -1, :3].astype(float)
            for seed in range(2):
                at = row, setting, seed
                assert found["accuracy", *at] == pytest.approx(scores[seed].mean())
                assert found["worst_decile", *at] == pytest.approx(scores[seed].min())
                assert found["megabytes_up", *at] == pytest.approx(2 * 650 * 4 / 1e6)
                weight = found["attackers_weight", *at]
                if setting == "sign flip" and row == "fedavg":
                    assert 0 < weight < 100
                else:  # no attackers, or a rule without weights
                    assert np.isnan(weight)


def test_no_client_is_scored_in_all_runs(finished):
    """Each run has its own, and no finished study is refused."""
    runs = {(row, row): read(finished / at / "fedavg/fedavg")
            for row, at in (("a", "no_attack"), ("b", "sign_flip"))}  # fmt: skip
    scores = runs["a", "a"].result.values()
    scores[..., :3] = np.nan
    made = report.Report(runs, ("accuracy",))
    assert "mean over 1 of 4 or 3 of 4 clients" in made.heading("accuracy")
    seen = made.numbers.set_index(["row", "seed"])["value"]
    assert seen["a", 0] == pytest.approx(100 * scores[0, 0, -1, 3])


def test_text_of_a_study(finished):
    text = (finished / "study.md").read_text()
    assert "Accuracy %: mean over 3 of 4 clients after the last round" in text
    assert "|  | no attack | sign flip |" in text
    assert "fedavg, median: aggregator median." in text
    assert "sign flip, all rows: 1 of 4 clients is Byzantine" in text
    latex = (finished / "study.tex").read_text()
    assert r"\caption{Accuracy \%: mean over 3 of 4 clients after the last round}" in latex
    assert r"\includegraphics[width=\linewidth]{study.png}" in latex
    assert "fedavg, median: aggregator median." in latex and "%" not in latex.replace(r"\%", "")
    for kind in ("table", "tabular", "figure"):
        assert latex.count(rf"\begin{{{kind}}}") == latex.count(rf"\end{{{kind}}}") > 0


def test_gains_of_clients(finished):
    """Over the clients that all runs score: client 3 attacks in one of the settings."""
    lines = read_rows(finished / "gains.csv")
    assert [(one["setting"], one["row"]) for one in lines] == [
        ("no attack", "fedavg, median"), ("sign flip", "fedavg, median")
    ]  # fmt: skip
    for one, place in zip(lines, ("no_attack", "sign_flip"), strict=True):
        median, fedavg = (
            pfl.Result.load(finished / place / row / "fedavg").values()[:, 0, -1, :3]
            for row in ("fedavg_median", "fedavg")
        )
        wins = (median > fedavg) + 0.5 * (median == fedavg)
        assert float(one["win_rate_over_fedavg"]) == pytest.approx(wins.mean())
    assert "Better than fedavg %" in (finished / "study.md").read_text()
    assert "Clients against fedavg" in (finished / "study.tex").read_text()
    assert (finished / "gains.png").exists()


def test_the_worst_tenth_of_eleven_clients_are_two(tmp_path):
    """As `Result.worst_decile` has it."""
    write_run(tmp_path / "a", "fedavg", np.linspace(0.1, 0.9, 11)[None, None], [0])
    run = read(tmp_path / "a")
    made = report.Report({("fedavg", "a"): run}, ("worst_decile",))
    found = made.values(run, "worst_decile")[1]
    np.testing.assert_allclose(found, 100 * run.result.worst_decile()[:, 0], 1e-6)
    np.testing.assert_allclose(found, [14], 1e-5)


def test_measures_of_a_change_of_concept(tmp_path):
    """Both clients change after two rounds; in the second seed `never` does not recover."""
    concept = np.broadcast_to([[0], [0], [1], [1], [1]], (2, 1, 5, 2))
    for name, last in (("soon", 0.8), ("never", 0.5)):
        means = np.array([[0.5, 0.8, 0.4, 0.7, 0.8], [0.5, 0.6, 0.5, 0.4, last]])
        write_run(tmp_path / name, "fedavg", means[..., None] + [0.1, -0.1], [0, 1])
        made = pfl.Result.load(tmp_path / name)
        drift = {"personalized/previous/accuracy": made.values() - np.float32(0.25)}
        drift["personalized/previous/loss"] = drift["personalized/previous/accuracy"]
        clients = made.clients | {"concept": concept}
        rewrite(tmp_path / name, clients=clients, scores=made.scores | drift)
    write_run(tmp_path / "still", "fedavg", means[..., None] + [0.1, -0.1], [0, 1])
    runs = {(name, "a"): read(tmp_path / name) for name in ("soon", "never", "still")}
    names = ("after_change", "rounds_to_recover", "backward_transfer")
    made = report.Report(runs, names)
    found = {(name, row): made.values(run, name)[1] for (row, _), run in runs.items()
             for name in names}  # fmt: skip
    np.testing.assert_allclose(found["after_change", "soon"], [40, 50], 1e-5)
    np.testing.assert_allclose(found["rounds_to_recover", "soon"], [3, 3])
    np.testing.assert_allclose(found["backward_transfer", "soon"], [-25, -5], atol=1e-4)
    assert np.isnan(found["rounds_to_recover", "never"]).all()
    assert all(np.isnan(found[name, "still"]).all() for name in names)
    assert r"\*" not in made.table("backward_transfer").to_markdown()  # no share, which ends at 0
    table = made.table("rounds_to_recover").to_markdown()
    assert "| soon | 3 |" in table and "| never | - |" in table
    none = report.Report({("still", "a"): runs["still", "a"]}, names)
    assert "| still | - |" in none.table("after_change").to_markdown()


def test_rows_on_other_data_have_no_gains(finished):
    rows = {"fedavg": "fedavg", "median": "fedavg_median"}
    runs = {(row, "a"): read(finished / "no_attack" / at / "fedavg") for row, at in rows.items()}
    assert report.Report(runs).gains
    runs["median", "a"].data["partition_hash"] = "another"
    assert not report.Report(runs).gains and not report.Report(runs).baselines


def test_a_cell_is_a_plain_run(finished, capsys):
    """The folder of a cell is that of `experiments.run` with the cell's flags."""
    place = finished / "sign_flip" / "fedavg"
    words = [word for word in WORDS if "measures" not in word]
    words += ["--attack=sign_flip", "--attackers=3", "--algorithms=fedavg"]
    assert run.main(["run", *words, f"--output_dir={place}"]) == 0
    assert "This run is finished" in capsys.readouterr().out


def test_a_figure_against_a_measure(finished):
    places = {"no attack": "no_attack", "sign flip": "sign_flip"}
    runs = {("fedavg", name): read(finished / at / "fedavg/fedavg") for name, at in places.items()}
    made = report.Report(runs, ("accuracy", "megabytes_up"), "megabytes_up")
    (axes,) = made.drawing().axes
    (line,) = axes.get_lines()
    sent = made.numbers.query("measure == 'megabytes_up'").groupby("setting")["value"].mean()
    np.testing.assert_allclose(line.get_xdata(), sorted(sent))
    assert axes.get_xlabel() == "megabytes up (lower is better)"
    assert report.Report(runs).measures == ("accuracy", "worst_decile")
    numbers = made.numbers.copy()
    numbers.loc[numbers["measure"].eq("accuracy").idxmax(), "value"] = np.nan
    made.__dict__["numbers"] = numbers  # the first seed of the first setting
    first, second = made.table("accuracy").cells[1][1:]
    assert first == "- ± -" and float(second.split(" ± ")[0]) > 0
    wide = report.Report(runs, ("accuracy",))
    numbers = wide.numbers.copy()
    numbers["value"] = [5.0, 95.0] * (len(numbers) // 2)  # by seed
    wide.__dict__["numbers"] = numbers
    table = wide.table("accuracy")
    assert table.cells[1][1].endswith("*") and "beyond the scale" in " ".join(table.notes)
    with pytest.raises(InputError, match="Did you mean 'accuracy'"):
        report.Report(runs, ("accuracyy",)).table("accuracyy")


@pytest.mark.costly
def test_measures_that_only_describe(tmp_path):
    """They have no percent, no direction and no best row; a cost of 0 has its place in a figure."""
    words = ("--algorithms=local,cfl,fedavg", "--measures=clusters,megabytes_up,accuracy")
    with drawing():
        assert call(*words, SETTINGS[0], "--x=megabytes_up", f"--output_dir={tmp_path}") == 0
    text = (tmp_path / "study.md").read_text()
    table = text.partition("Clusters: mean over the rounds")[2].partition("##")[0]
    assert [line for line in table.splitlines() if "cfl" in line] == ["| cfl | 1 |"]
    assert "## Ranks" not in text
    runs = {(row, "a"): read(tmp_path / "no_attack" / row / row) for row in ("local", "fedavg")}
    made = report.Report(runs, ("accuracy", "megabytes_up"), "megabytes_up")
    (axes,) = made.drawing().axes
    assert axes.get_xscale() == "symlog" and axes.get_xlim()[0] <= 0


@pytest.mark.parametrize("count", [5, 4])
def test_ranks_without_a_score_of_the_first_baseline(count):
    """With a table and a diagram from five settings on."""
    lines = [(row, f"{k}", 0, score + k / 10) for row, score in (("fedavg", 1), ("ditto", 2))
             for k in range(count)]  # fmt: skip
    frame = pd.DataFrame(lines, columns=["row", "setting", "seed", "value"])
    pivot = Pivot(frame, "std", [], "", axes=(["local", "fedavg", "ditto"], []))
    made: Any = SimpleNamespace(
        styles={"local": 0, "fedavg": 1}, runs={("fedavg", f"{k}"): None for k in range(count)},
        pivot=lambda _: pivot, measures=["x"],
        measure=lambda _: pivot.measure, baselines=["local", "fedavg"],
    )  # fmt: skip
    (section,) = sections._ranks(made)
    if count == 4:
        assert section.picture is None and not section.tables
        assert "at least 5 data sets or settings" in section.notes[0]
        return
    assert section.picture is not None
    assert section.tables[0].cells[0][2] == "p vs fedavg"
    assert "Left out, as they have no score: local." in section.paragraphs()


@pytest.mark.parametrize(("words", "text"), [
    ([], "Give the columns with --setting='NAME: FLAGS'"),
    (["--setting=--alpha=1"], "--setting must be 'NAME: FLAGS', got '--alpha=1'"),
    (["--setting=a b:", "--setting=a_b:"], "--setting needs different names, got 'a b' and 'a_b'"),
    (["--setting=a:", "--row=b:"], "A row has one algorithm, and 'b' has"),
    (["--setting=a: --output_dir=x"], "--output_dir=x belongs to the whole study"),
    (["--setting=a: --algorithms=ditto"], "--algorithms belongs to the rows, not"),
    (["--setting=a: --set='x"], "can't be read: No closing quotation"),
    (["--setting=a:", "--row=b: --algorithms='local"], "can't be read: No closing quotation"),
    (["--setting=a:", "--headline=best"], "--headline is for tables of runs"),
    (["--setting=a:", "--budget=2"], "--budget needs a --grid"),
    (["--setting=a:", "--x=megabytes"], "megabytes"),
    (["--setting=a: --dp_noise=1", "--algorithms=fedavg"], "fedavg, a: "),
    (["--setting=a:", "--measures=accurracy"], "Did you mean 'accuracy'"),
    (["--setting=a:", "--setting=b: --dataset=diabetes --model=mlp --partition=iid",
      "--measures=accuracy"], "accuracy is a metric of 2 of 4 cells"),
    (["--setting=a:", "--setting=b: --dataset=diabetes --model=mlp --partition=iid",
      "--measures="], "different main metrics, accuracy and mse"),
])  # fmt: skip
def test_study_refused(words, text, tmp_path, capsys):
    folder = tmp_path / "out"
    assert call("--algorithms=local,fedavg", *words, f"--output_dir={folder}") == 2
    assert text in capsys.readouterr().err
    assert not folder.exists()


LARGE = ("study/attacks", "study/attacks_100", "study/compression", "study/privacy")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.costly] if name in LARGE else [])
        for name in presets.studies()
    ],
)
def test_presets_of_studies(name, tmp_path):
    """Every cell of a study of this package has valid flags and one algorithm."""
    argv = ["study", f"--preset={name}"]
    config = flags.parse(argv, study.define)
    report.check(config.measures, config.x)
    cells = study.cells_of(argv, config, tmp_path)
    assert len(cells) >= 10
    for cell in cells:
        cell.config.check()
        assert cell.config.instances
