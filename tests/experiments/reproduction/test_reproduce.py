"""Papers' tables: the files, a small one from end to end, going on, and what is missing."""

import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import reproduce, run
from experiments.cli import data_flags, simulating
from experiments.reproduction import paper_tables as reproduce_tables
from experiments.reproduction import planning, table_cells, table_report
from fedjax_pfl.data.sources.source_registry import DATASETS
from fedjax_pfl.results.intervals import interval
from tests.experiments.reproduction.small_table import call, write_table
from tests.experiments.small_runs import assert_refused, read_rows, stamps
from tests.experiments.stopped_runs import watching
from tests.experiments.written_runs import write_run

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("tables"))


def rows(folder):
    return {(row["column"], row["row"]): row for row in read_rows(folder / "table.csv")}


@pytest.fixture(scope="module")
def finished(tables, tmp_path_factory):
    """A table that was stopped in its second run, and went on."""
    folder = tmp_path_factory.mktemp("out") / "it"
    words = ("--checkpoint_seconds=0", "--eval_every=1")

    def kill(name, progress):
        if len(names) == 2 and progress.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with contextlib.chdir(ROOT), watching(kill) as names, pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulating, "LATE", 300.0)  # else a slow machine ends this process
        assert call(tables, folder, *words) == 130
        assert names == ["local", "feddwa"] and not (folder / "table.csv").exists()
        assert call(tables, folder, *words) == 0
    assert names[2:] == ["feddwa", "feddwa"], "the first was finished already"
    return folder


def test_numbers_beside_the_papers(finished):
    table = rows(finished)
    assert len(table) == 8
    for name, algorithm, paper in (("local", "local", 90), ("dwa_1", "feddwa", 91)):
        result = pfl.Result.load(finished / "digits_quick" / name / algorithm)
        scores = 100 * result.pooled()[:, 0].max(axis=1)  # the best round, all samples alike
        row = table["digits", name]
        assert (row["state"], row["seeds"], float(row["paper"])) == ("measured", "2", paper)
        assert float(row["ours"]) == pytest.approx(scores.mean(), abs=1e-4)
        assert float(row["difference"]) == pytest.approx(scores.mean() - paper, abs=1e-4)
        assert float(row["ci95_half_width"]) == pytest.approx(interval(scores), abs=1e-4)


def test_notes_on_the_numbers(finished):
    """Two seeds; and, of rows of another origin, other clients and remarks."""
    note = "With 2 seeds a 95 % interval has 1 degree of freedom"
    assert note in (finished / "table.md").read_text()
    assert (finished / "table.png").stat().st_size > 1000
    line = reproduce_tables.Line("A", "local", (90.0,))
    own = {"line": line, "paper": 90.0, "paper_std": 99.0, "scores": np.array([40.0, 60.0]),
           "state": table_cells.MEASURED, "clients": (0, 1), "remarks": ("x",)}  # fmt: skip
    other = own | {"line": replace(line, title="B"), "clients": (0,), "remarks": ()}
    section = table_cells.ColumnRuns(reproduce_tables.Column("c", "C", "p"))
    table = reproduce_tables.load("plga/2")

    def compared(*made):
        return table_cells.compared(list(made), table, "full", section)

    first, second, *_ = table_report.footnotes(section, compared(own, other))
    assert first == "A: x." and second.startswith("Ours are means over different clients")
    assert second.endswith("A: clients 0, 1; B: client 0.")
    _, row = table_report.column_table(section, compared(own)).cells
    assert row[1:4] == ["90.00 ± 99.00", "50.00 ± 127.06*", "-40.00 ± 127.06*"]
    assert table_report.footnotes(section, compared(own | {"scores": None})) == []


def test_missing_cells(finished):
    table = rows(finished)
    assert table["digits", "nobody"]["state"] == "not in this version"
    assert float(table["digits", "nobody"]["paper"]) == 99
    assert table["cifar", "local"]["state"] == "data missing"
    assert table["cifar", "dwa"]["state"] == "not in the paper"
    text = (finished / "table.md").read_text()
    assert "SMALL SCALE" in text and "NOT comparable" in text
    assert "Not run: CIFAR-10. Data set 'cifar10' was not found" in text
    assert "cifar-10-binary.tar.gz" in text
    assert "| Nobody | 99.00 | not in this version | - |" in text
    assert "## digits" in text and "## CIFAR-10" not in text, "a column without cells has no table"
    assert "| Local | 90.00 ± 0.50 |" in text


def test_a_finished_one_is_printed_and_left_alone(tables, finished, monkeypatch, capsys):
    before = stamps(finished)
    monkeypatch.setattr(run, "run", lambda *_, **__: pytest.fail("nothing is left to run"))
    assert call(tables, finished, "--eval_every=1") == 0
    text = capsys.readouterr().out
    assert "runs to do" not in text and "DWA (1)" in text and "Not run: CIFAR-10" in text
    after = stamps(finished)
    changed = {path.name for path in after if path.is_file() and after[path] != before.get(path)}
    assert changed <= {".lock"}


def test_other_flags_are_refused(tables, finished, capsys):
    """More rounds go on with a run, but set no table's runs aside."""
    before = sorted(finished.rglob("*"))
    assert call(tables, finished, "--rounds=60", "--eval_every=1") == 2
    assert "is another run: --rounds was 50 and is 60" in capsys.readouterr().err
    assert call(tables, finished, "--scale=full") == 2
    assert "--scale was 'small' and is 'full'" in capsys.readouterr().err
    assert sorted(finished.rglob("*")) == before


def test_a_run_is_finished_with_the_rounds_of_the_file(tables, finished):
    """Where the table's file has more rounds by now, its runs go on."""
    table = reproduce_tables.load("mine/1", tables)
    more = ("--checkpoint_seconds=0", "--eval_every=1")
    for rounds, there in ((2, True), (3, False)):
        changed = replace(table, small=tuple(w.replace("rounds=2", f"rounds={rounds}")
                                             for w in table.small))  # fmt: skip
        asked = planning.Request(changed, "small", more, finished)
        assert [cell.finished() for cell in asked.cells(table.column[0])] == [there] * 3


def test_results_of_other_data_are_no_cells_of_the_table(tables, finished, monkeypatch, capsys):
    """A data set that is gone can't be another one: its results are shown."""
    source = DATASETS["digits"]
    whole = source.load(None)
    changed = replace(whole, train_x=whole.train_x[::-1].copy())

    def gone(data_dir):
        raise pfl.InputError("It is gone.")

    for load, code in ((lambda data_dir: changed, 2), (gone, 0)):
        data_flags.last_loaded.cache_clear()
        monkeypatch.setitem(DATASETS, "digits", source._replace(load=load))
        assert call(tables, finished, "--eval_every=1") == code
        said = capsys.readouterr()
        assert ("content of the data set was" in said.err) == (code == 2)
        assert ("DWA (1)" in said.out) == (code == 0)
    data_flags.last_loaded.cache_clear()


def test_another_data_set_stands_in(tables, finished, capsys):
    """Only the requested row; no difference is given, the others are kept."""
    words = ("--eval_every=1", "--stand_in=digits", "--columns=cifar", "--rows=local")
    words += ("--test_split=pooled",)
    folder = finished.parent / "other"
    assert call(tables, folder, *words) == 0
    text = capsys.readouterr().out
    assert "CIFAR-10 (on digits instead of the paper's data set)" in text
    assert "--train_samples=40" in text and "would mean nothing" in text
    row = rows(folder)["cifar", "local"]
    assert row["state"] == "measured" and row["difference"] == "" and row["ours"]
    assert rows(folder)["cifar", "dwa_1"]["state"] == "not run"
    assert rows(folder)["digits", "local"]["state"] == "not run"
    (folder / "table.md").unlink()  # made again, with the kept runs of the other column
    assert call(tables, folder, *words, "--columns=digits", "--rows=nobody") == 0
    assert rows(folder)["cifar", "local"] == row


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--table=mine/2"], "Unknown table 'mine/2'. Did you mean 'mine/1'?"),
        (["--rows=locl"], "Unknown name in --rows of mine/1 'locl'. Did you mean 'local'?"),
        (["--scale=smal"], "Unknown scale 'smal'. Did you mean 'small'?"),
        (["--stand_in=fashion"], "Did you mean 'fashion_mnist'?"),
        (["--algorithms=fedavg"], "--algorithms can't be given here: choose algorithms with"),
        (["--stand_in=cifar10:"], "--stand_in=cifar10: doesn't say what to use"),
        (["--columns=cifar", "--stand_in=cifar100"], "Data set 'cifar100' was not found"),
    ],
)
def test_reproduce_refused(tables, tmp_path, capsys, words, said):
    assert_refused(call(tables, tmp_path / "out", *words), said, capsys)
    assert not (tmp_path / "out").exists()


def test_reproduce_without_a_table(capsys):
    assert_refused(reproduce.main(["reproduce"]), "--table=PAPER/TABLE", capsys)
    assert reproduce.main(["reproduce", "--tabel=pfedla/1"]) == 2
    assert "Unknown command line flag 'tabel'" in capsys.readouterr().err


def test_scores_of_one_client_and_of_the_server(tmp_path):
    """Columns choose the model and the mean."""
    write_run(tmp_path / "r" / "fedavg", "fedavg", [[[0.2, 0.8]], [[0.4, 0.7]]], [0, 1])
    table = reproduce_tables.load("plga/2")
    line, folder = table.row[0], tmp_path / "r" / "fedavg"
    for average, scores in ((None, [50, 55]), ("samples", [60, 60])):
        column = reproduce_tables.Column("a", "a", "digits_quick", average=average)
        measured = table_cells.measured(table, column, line, folder)["scores"]
        np.testing.assert_allclose(measured, scores, rtol=1e-6)


def test_a_row_may_have_the_scores_of_all_clients(tmp_path):
    """FedDWA's Table 2: those of the next participants, and of all for methods of one model."""
    folder = tmp_path / "r" / "fedavg"
    write_run(folder, "fedavg", [[[0.2, 0.8], [0.4, 0.7]]], [0])
    table = replace(reproduce_tables.load("feddwa/2"), average="clients", score="final")
    column = reproduce_tables.Column("a", "a", "digits_quick")
    for line, scores in ((table.row[0], [55]), (table.row[-1], [np.nan])):  # none takes part next
        measured = table_cells.measured(table, column, line, folder)["scores"]
        np.testing.assert_allclose(measured, scores, rtol=1e-6)
    assert [one.title for one in table.row if one.over] == ["FedAvg", "FedProx", "FedAvgM"]
