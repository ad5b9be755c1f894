"""Costs, scores of single clients, relative columns, and how a table agrees with the paper's."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as pfl
from experiments.reproduction import paper_tables, table_cells, table_report
from experiments.reproduction.planning import Request
from experiments.reproduction.table_cells import ColumnRuns
from tests.experiments.reproduction.small_table import NAN, column, row, table_text, write_table
from tests.experiments.small_runs import read_rows
from tests.experiments.written_runs import write_run

COLUMNS = [
    column("accuracy"),
    column("mb", title="MB", quantity="traffic", times=2),
    column("time", quantity="seconds", relative="a"),
]
ROWS = [
    row("A", "fedavg", 50, 57, 10),
    row("A, c2", "fedavg", 61, NAN, NAN, client=1),
    row("B", "local", 40, 60, 25),
    row("C", "feddwa", 30, NAN, NAN),
]
COSTS = {"table": "Table 2", "caption": "costs", "score": "final", "average": "clients"}
COSTS |= {"flags": [], "small": []}
EXPLAIN = {"by": "rate", "text": "it is not stated", "rows": ["b"]}
TABLE = table_text(COLUMNS, ROWS, [EXPLAIN], **COSTS)


@pytest.fixture
def folder(tmp_path):
    return write_table(tmp_path, TABLE, "mine/2")


@pytest.fixture
def made(folder):
    """A: 50 % (40 and 60 of its clients), B: 55 %, C: not run."""
    table = paper_tables.load("mine/2", folder)
    write_run(folder / "a" / "fedavg", "fedavg", [[[0.4, 0.6]]] * 2, [0, 1], pace=2.0)
    write_run(folder / "b" / "local", "local", [[[0.5, 0.6]]] * 2, [0, 1], pace=4.0)
    runs = {"a": folder / "a" / "fedavg", "a_c2": folder / "a" / "fedavg", "b": folder / "b/local"}
    sections = tuple(ColumnRuns(column, runs) for column in table.column)
    return table_report.Report(table, "full", (), sections)


def by_row(made, column):
    return made.cells[column].set_index("row")


def far(made, column):
    """Names of what explains cells that are far off, by row."""
    return {row: why for row, why in by_row(made, column)["explained_by"].items() if why}


def cell_of(table, scores, paper=1.0, **more):
    """A raw cell of the table's last row."""
    return {"line": table.row[3], "state": table_cells.MEASURED, "paper": paper, "paper_std": None,
            "scores": None if scores is None else np.array(scores, float), **more}  # fmt: skip


def explained(table, section, scale="full", **cell):
    frame = table_cells.compared([cell_of(table, **cell)], table, scale, section)
    return frame["explained_by"][0]


def test_scores_and_costs(made):
    ours = by_row(made, "accuracy")["ours"]
    assert ours.to_dict() == pytest.approx({"a": 50, "a_c2": 60, "b": 55, "c": np.nan}, nan_ok=True)
    both = 2 * (10 + 20) * 1e6 / 2**20  # `times`, both ways, in MiB
    assert by_row(made, "mb")["ours"]["a"] == pytest.approx(both)
    b = by_row(made, "time").loc["b"]
    assert (b["ours"], b["paper"], b["printed"], b["own"]) == (2.0, 2.5, 25, 4.0)  # times row A's


def test_verdict_of_a_column(made):
    """Order, distances and what explains them."""
    order = ("kendall_tau", "rows")
    near = ("within", "compared", "unexplained")
    accuracy, total = made.verdicts["accuracy"], made.verdict
    assert [accuracy[n] for n in order] == [-1.0, 2], "rows of single clients have no place"
    assert [accuracy[n] for n in near] == [2, 3, 0], "A, and its client that is 1 off"
    assert far(made, "accuracy") == {"b": ("rate",)}
    assert far(made, "mb") == {"b": ("rate",)}, "A is within 2 percent of 57"
    assert far(made, "time") == {"b": ("rate",)} and made.verdicts["time"]["kendall_tau"] == 1
    assert [total[n] for n in near] == [4, 7, 0]
    assert [total[n] for n in order] == pytest.approx([0, 4])  # of the two columns with an order


def test_changes_on_the_command_line_are_named_without_places(made):
    words = "--data_dir", "/my/data", "-output_dir=/x", "--devices=2", "--headline=pfllib"
    assert "command line" not in " ".join(replace(made, more=words).meaning())
    text = " ".join(replace(made, more=(*words, "--rounds", "7")).meaning())
    assert "Changed on the command line: --rounds=7." in text


def test_no_scale_but_the_papers_is_compared(made):
    """Scale explains what depends on it, another data set leaves the order alone."""
    small = table_report.Report(made.table, "small", (), made.sections)
    assert far(small, "accuracy") == {"b": ("scale", "rate")}
    assert far(small, "mb") == {"b": ("rate",)}
    other = ColumnRuns(made.sections[0].column, made.sections[0].folders, other_data=True)
    on_other = table_report.Report(made.table, "full", (), (other,))
    (verdict,) = on_other.verdicts.values()
    assert (verdict["kendall_tau"], verdict["compared"]) == (-1.0, 0)
    assert far(on_other, "accuracy") == {}
    section = made.sections[0]
    assert explained(made.table, section, scores=[9]) == ("unexplained",)
    remarks = ("training of 2 clients (0, 1) went non-finite",)
    assert explained(made.table, section, scores=[9], remarks=remarks) == ("diverged",)


def test_what_puts_ours_below_explains_no_more(made):
    reason = replace(made.table.explain[0], rows=(), ours="below")
    table = replace(made.table, explain=(reason,))
    for ours, why in ((9.0, ("unexplained",)), (6.5, ("rate",))):
        assert explained(table, made.sections[0], paper=9 if why == ("rate",) else 1,
                         scores=[ours]) == why  # fmt: skip


def test_a_scale_says_what_it_changes(made):
    """Where it changes nothing, it is the paper's setting; where it does, no cell need be near."""
    small = table_report.Report(made.table, "small", (), made.sections)
    assert not small.reduced and any("FULL SCALE" in one for one in small.meaning())
    table = replace(made.table, small=("--rounds=2",))
    reduced = table_report.Report(table, "small", (), made.sections)
    assert reduced.reduced and any("SMALL SCALE: far from" in one for one in reduced.meaning())
    assert "at this scale no cell need be" in reduced.verdict_lines()[1]
    assert "0 of the others are unexplained" in made.verdict_lines()[1]


def test_rows_whose_intervals_overlap_are_not_told_apart(made):
    """Two means are apart by more than both halves; one seed has no interval at all."""
    assert table_cells.separated_pairs([50.0, 54.0, 53.0], [2.0, 1.0, 1.0]) == (1, 3)
    assert table_cells.separated_pairs([50.0], [1.0]) == (0, 0)
    accuracy = made.verdicts["accuracy"]  # A and B, equal in both seeds; not A's client
    assert (accuracy["apart"], accuracy["pairs"]) == (1, 1)
    assert (made.verdict["apart"], made.verdict["pairs"]) == (1, 2)  # seconds are of one run
    assert "intervals of 1 of 2 pairs of rows do not overlap" in made.verdict_lines()[0]
    single = [cell_of(made.table, scores=[ours]) for ours in (3, 4)]
    columns = [(ColumnRuns(replace(one.column, relative=None))) for one in made.sections]
    one_seed = [
        table_cells.verdict(
            table_cells.compared(single, made.table, "full", section), section.column
        )
        for section in columns
    ]
    assert [one["apart"] for one in one_seed] == [0, 1, 0], "MB are counted, not estimated"
    assert table_report.verdict_table(made).cells[1][3] == "1 of 1"
    result = table_report.summary(made)["columns"]["accuracy"]
    assert (result["apart"], result["pairs"]) == (1, 1)


def test_what_was_tuned_for_agreement_is_said_where_it_was(made):
    table = replace(made.table, tuned_for_agreement="the rate was chosen.")
    small = table_report.Report(table, "small", (), made.sections)
    assert small.verdict_lines()[1].endswith(
        "no evidence for the paper's order: the rate was chosen."
    )
    assert table_report.summary(small)["tuned_for_agreement"] == "the rate was chosen."
    full = table_report.Report(table, "full", (), made.sections)
    assert not full.tuned and not any("Tuned" in line for line in full.verdict_lines())
    assert "share" in paper_tables.load("pfedla/2").tuned_for_agreement


def kendall(paper, ours):
    return table_cells.kendall(pd.Series(paper), pd.Series(ours))


def test_kendall_with_ties():
    assert kendall([1, 2, 2], [1, 2, 3]) == pytest.approx(2 / 6**0.5)
    assert kendall([1], [1]) is None and kendall([1, 1], [1, 2]) is None


def test_equal_scores_tie_whatever_their_rounding(made):
    """Clients' fractions are in single precision: two means of 2.3 / 3."""
    one, other = (
        100 * np.mean(np.array(values, np.float32).astype(float))
        for values in ([0.83, 0.77, 0.7], [0.81, 0.79, 0.7])
    )
    assert one != other and one == pytest.approx(other, abs=1e-5)
    assert table_report.places(pd.Series([one, other, 50.0])) == ["1", "1", "3"]
    assert kendall([3, 2, 1], [one, other, 50.0]) == pytest.approx(2 / 6**0.5)
    near = table_report.places(pd.Series([76.6667, 76.6633]))
    assert near == ["1", "2"], "one sample of 30,000 is a difference"
    for ours, why in ((92 + 4e-6, ()), (92.004, ("unexplained",)), (88 - 4e-6, ())):
        cell = {"scores": [ours], "paper": 90.0}
        assert explained(made.table, made.sections[0], **cell) == why


def test_notes_on_runs_are_those_of_means(made):
    """Not of rows of single clients, the first one's neither."""
    section = made.sections[0]
    for client, notes in ((0, []), (None, ["C: x."])):
        line = replace(made.table.row[3], client=client)
        cell = cell_of(made.table, scores=[40], clients=(0,), remarks=("x",)) | {"line": line}
        frame = table_cells.compared([cell], made.table, "full", section)
        assert table_report.footnotes(section, frame) == notes


def test_files_of_a_report(made, tmp_path):
    table_report.write(tmp_path, made)
    text = (tmp_path / "table.md").read_text()
    assert "4 of 7 cells (57 %) are within 2 points" in text and "- **rate**: it is not" in text
    assert "| B | 2.50 (25) | 2.00 (4) | -0.50 |" in text and "Paper MiB" in text
    result = json.loads((tmp_path / "table.json").read_text())
    assert result["columns"]["accuracy"]["kendall_tau"] == -1.0
    assert {"column": "mb", "row": "b", "explained_by": ["rate"]} in result["further_off"]
    rows = {(row["column"], row["row"]): row for row in read_rows(tmp_path / "table.csv")}
    assert rows["accuracy", "b"]["explained_by"] == "rate"
    assert rows["accuracy", "a"]["within"] == "True" and rows["mb", "a"]["unit"] == "MiB"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('quantity = "traffic"', 'quantity = "bytes"', "quantity must be one of accuracy, traffic"),
        ('relative = "a"', 'relative = "z"', "no row 'z'"),
        ("times = 2", 'small = ["--rounds=3"]', "differ in runs of one preset"),
        ('algorithm = "local"', 'algorithm = "local"\nflags = ["--rounds={r}"]', "no value 'r'"),
        ('rows = ["b"]', 'rows = ["z"]', "'rate' explains cells of ['z']"),
        ('score = "final"', 'score = "final"\nreading.new.text = ""', "a reading must be one of"),
    ],
)
def test_damaged_tables(folder, before, after, said):
    assert before in TABLE
    write_table(folder, TABLE.replace(before, after, 1), "mine/2")
    with pytest.raises(pfl.InputError) as error:
        paper_tables.load("mine/2", folder)
    assert said in str(error.value)


def test_values_of_columns_and_readings(folder):
    """A column's values fill its rows' flags; a reading changes preset, flags and settings."""
    reading = (
        'reading.paper.preset = "fashion_mnist_grouped"\nreading.code.flags = ["--rounds=7"]\n'
    )
    own = column("accuracy", small=["--rounds=2"])
    line = row("K", "feddwa", 1, settings=["feddwa.top_k={k}"])
    text = table_text([own], [line], **COSTS)
    for after, more in (
        ('preset = "digits_quick"\n', 'values.k = "3"\n' + reading),
        ("paper = [1]\n", 'reading.paper.settings = ["feddwa.guidance=last"]\n'),
    ):
        text = text.replace(after, after + more)
    write_table(folder, text, "mine/2")
    table = paper_tables.load("mine/2", folder)
    assert table.readings() == ["paper", "code"]

    def words(scale, reading):
        asked = Request(table, scale, (), folder, reading=reading)
        ((cell),) = asked.cells(table.column[0])
        return cell.words

    plain = words("full", None)
    assert "--set=feddwa.top_k=3" in plain and "--preset=digits_quick" in plain
    paper = words("full", "paper")
    assert "--preset=fashion_mnist_grouped" in paper and "--set=feddwa.guidance=last" in paper
    code = words("small", "code")
    assert code.index("--rounds=7") < code.index("--rounds=2"), "the scale is the last word"
    medium = words("medium", None)
    assert set(paper_tables.MEDIUM) < set(medium) and "--rounds=2" in medium
