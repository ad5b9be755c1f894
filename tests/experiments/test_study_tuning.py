"""Studies whose rows are tuned alike: the choice, the report, continuing, and refusals."""

import re
import shutil

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import study, sweep
from experiments.cli import flags
from experiments.figures.loading import read
from experiments.grid import sections
from experiments.grid import study_report as report
from experiments.grid.ranking import Outcome
from tests.experiments.small_runs import SMALL, assert_refused, read_rows

from .conftest import drawing

WORDS = (*SMALL, "--eval_every=2", "--setting=skewed: --alpha=0.3",
         "--grid=learning_rate=0.001,0.3")  # fmt: skip
ROWS = [
    "--row=local: --algorithms=local",
    "--row=ours: --algorithms=feddwa --grid=learning_rate=0.1 --grid=feddwa.top_k=1,4",
]


def call(*words):
    return study.main(["study", *WORDS, *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned") / "out"
    with drawing():
        assert call(*ROWS, f"--output_dir={folder}") == 0
    return folder


def table_of(folder, row):
    return next(line for line in read_rows(folder / "tuning.csv") if line["row"] == row)


def test_each_row_has_the_best_of_as_many_settings(finished):
    for row, algorithm in (("local", "local"), ("ours", "feddwa")):
        tried = read_rows(finished / "tuning" / "skewed" / row / "sweep.csv")
        assert len(tried) == 2 and {one["seed"] for one in tried} == {"0"}
        chosen = max(tried, key=lambda one: float(one["validation_percent"]))
        result = pfl.Result.load(finished / "skewed" / row / algorithm)
        assert result.seeds == (0, 1)
        assert result.training["learning_rate"] == float(chosen["learning_rate"])
        if algorithm == "feddwa":
            assert result.hyperparameters["top_k"] == int(chosen["feddwa.top_k"])
            assert chosen["learning_rate"] == "0.1"
        line = table_of(finished, row)
        highest = max(float(one["test_percent"]) for one in tried)
        wanted = float(chosen["validation_percent"]), float(chosen["test_percent"]), highest
        got = [float(line[name]) for name in ("validation", "test", "best_on_test")]
        assert got == pytest.approx(wanted, abs=0.006)
        # The same samples stay set aside, so the run's first seed is the sweep's chosen setting.
        own = 100 * result.curve()[0, 0, -1]
        assert own == pytest.approx(float(chosen["test_percent"]), abs=1e-3)
        assert "personalized/validation/accuracy" in result.scores


def test_report_of_a_tuned_study(finished):
    text = (finished / "study.md").read_text()
    headings = re.findall("^## (.+)$", text, re.MULTILINE)
    assert headings[2:] == ["By setting", "Clients against local", "Tuning", "Costs"]
    assert "Each row tried 2 combinations with seed 0" in text and "chosen on test samples" in text
    assert "Best on test" not in text.partition("## Tuning")[0]
    assert "skewed/local: the best learning_rate, 0.3, is the largest that was tried." in text
    page = (finished / "study.html").read_text()
    assert page.count("<table>") == 5
    assert page.count('<img src="data:image/png;base64,') == 2
    assert not re.search(r'(src|href)="(?!data:)|<script|<link', page)
    assert (finished / "study.tex").read_text().count(r"\begin{tabular}") == 5
    costs = {one["row"]: one for one in read_rows(finished / "costs.csv")}
    assert float(costs["local"]["megabytes_up"]) == 0
    assert float(costs["ours"]["megabytes_down"]) == pytest.approx(2 * 650 * 4 / 1e6)
    assert float(costs["ours"]["gflop"]) > 0


def test_a_killed_study_continues(finished, tmp_path, monkeypatch, capsys):
    """What is finished is read: the sweeps, and the run of `local`."""
    folder = tmp_path / "out"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "skewed" / "ours")
    for path in {*folder.glob("study.*"), *folder.glob("*.csv")}:
        path.unlink()

    def simulated(*args, **options):
        raise AssertionError("a finished setting was simulated again")

    monkeypatch.setattr(sweep, "simulate", simulated)
    with drawing():
        assert call(*ROWS, f"--output_dir={folder}") == 0
    assert "feddwa: compiling" in capsys.readouterr().out
    for name in ("study.csv", "tuning.csv", "gains.csv"):
        assert (folder / name).read_text() == (finished / name).read_text()
    assert call(*ROWS, "--rank_by=last_tenth", f"--output_dir={folder}") == 2
    assert f"{folder} is another run: --rank_by was" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (["--algorithms=local,feddwa", "--grid=feddwa.top_k=1,3"],
     "--grid has 2 combinations for 'local' and 4 for 'feddwa': give rows equally many, or"),
    (["--algorithms=local", "--grid=fedavg.server_rate=1,2"], "local, skewed: "),
    (["--algorithms=local", "--setting=tuning:"], "--setting can't be 'tuning' beside --grid"),
    (["--algorithms=local", "--setting=a: --budget=3"], "belongs to the whole study"),
    (["--algorithms=local", "--tuning_seeds=0"], "--tuning_seeds must be a whole number of at"),
])  # fmt: skip
def test_tuning_refused(words, said, tmp_path, capsys):
    folder = tmp_path / "out"
    assert_refused(call(*words, f"--output_dir={folder}"), said, capsys)
    assert not folder.exists()


def test_a_budget_makes_grids_alike(tmp_path):
    argv = ["study", *WORDS, "--algorithms=local,feddwa", "--grid=feddwa.top_k=1,3", "--budget=2",
            "--tuning_seeds=5"]  # fmt: skip
    config = flags.parse(argv, study.define)
    planned = study.tuned(study.cells_of(argv, config, tmp_path), tmp_path)
    plans = [plan for _, plan in planned]
    assert [sum(len(one.inside) for one in plan.programs) for plan in plans] == [2, 2]
    assert {plan.config.num_seeds for plan in plans} == {2}  # no more than the study has
    assert "drawn from its grid: 2." in plans[0].heading[-1]


def test_the_columns_of_the_tuning(finished):
    """The setting chosen on validation samples is not the best on test samples."""

    def row(rate, validation, test):
        each = np.array([[validation] * 2]), np.array([test])
        scores = np.array([validation]), np.array([np.mean(test)])
        setting = {"learning_rate": rate}
        return Outcome("local", setting, (0,), *scores, by_client=each)

    outcomes = [row("0.1", 70.0, [10.0, 20.0]), row("1", 60.0, [50.0, 70.0])]
    run = read(finished / "skewed" / "local" / "local")
    made = report.Report({("a", "s"): run})
    tuned = sections.sections(made, {("a", "s"): outcomes})
    (table,) = next(part for part in tuned if part.title == "Tuning").tables
    heading, cells = table.cells
    assert cells == ["s", "a", "learning_rate=0.1", "70.00", "15.00", "15.00", "60.00"]
    assert heading[-1] == "Best on test %"


def test_validation_samples_of_a_partitions_file(tmp_path):
    """The runs have those that the tuning had, not others set aside from what is left."""
    partition = pfl.make_partition("iid", pfl.load_dataset("digits"), 4, 0).split_validation(0.3, 0)
    partition.save(tmp_path / "own.npz")
    words = ["study", *SMALL, "--algorithms=fedavg", "--setting=a:", "--grid=learning_rate=0.1,1"]
    for more, split in (([f"--partition_file={tmp_path / 'own.npz'}"], False), ([], True)):
        argv = [*words, *more, f"--output_dir={tmp_path / 'out'}"]
        cells = study.cells_of(argv, flags.parse(argv, study.define), tmp_path / "out")
        ((cell, _),) = study.tuned(cells, tmp_path / "out")
        assert (sweep.VALIDATION in cell.words) is split
