"""One table in all its formats."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from fedjax_pfl.results.intervals import half_widths, interval_notes, mean_with_interval
from fedjax_pfl.results.table import BOLD, UNDERLINED, Column, Table, measured
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

TABLE = Table(
    [
        Column("name", "Run"),
        measured("mean", "Accuracy %", ACCURACY, 100.0, "accuracy"),
        half_widths("half", "mean", ACCURACY, 100.0),
        Column("ids", "Clients", lambda row: f"{len(row['ids'])} clients", left=True),
        Column("extra", "Extra", shown=False),
        Column("absent", "Absent"),
    ],
    [
        {"name": "a_1", "mean": 0.5, "half": 0.625, "ids": [0, 2], "extra": 3},
        {"name": "b", "mean": 0.25, "half": None, "ids": [1], "extra": None},
    ],
    ["A note."],
)


def test_cells_for_readers():
    """Columns of no row and hidden ones are left out; missing values are dashes."""
    assert TABLE.cells == [
        ["Run", "Accuracy %", "± 95 %", "Clients"],
        ["a_1", "50.00", "62.50*", "2 clients"],
        ["b", "25.00", "-", "1 clients"],
    ]
    assert TABLE.without(["half", "ids"]).cells[1] == ["a_1", "50.00"]
    assert TABLE.to_text().splitlines()[1] == "a_1       50.00  62.50*  2 clients"


def test_markdown():
    lines = TABLE.to_markdown().splitlines()
    assert lines[:2] == ["| Run | Accuracy % | ± 95 % | Clients |", "| --- | ---: | ---: | --- |"]
    assert lines[2] == "| a_1 | 50.00 | 62.50* | 2 clients |"
    marked = replace(TABLE, emphasis={(0, "half"): BOLD, (1, "mean"): UNDERLINED})
    assert r"| **62.50\*** |" in marked.to_markdown()
    assert "| <u>25.00</u> |" in marked.to_markdown()


def test_latex():
    marked = replace(TABLE, emphasis={(0, "half"): BOLD, (1, "mean"): UNDERLINED})
    lines = marked.to_latex().splitlines()
    assert lines[:3] == ["% A note.", r"\begin{tabular}{lrrr}", r"\toprule"]
    assert lines[3] == r"Run & Accuracy \% & $\pm$ 95 \% & Clients \\"
    assert lines[5:7] == [
        r"a\_1 & 50.00 & \textbf{62.50*} & 2 clients \\",
        r"b & \underline{25.00} & - & 1 clients \\",
    ]
    assert TABLE.to_latex("c").splitlines()[1] == r"\begin{tabular}{lccc}"


def test_names_with_special_characters():
    table = Table.of_cells(["", "x|y"], [[r"a\b^2 ~{$c} <d> |e #1 &", "1"]])
    assert table.to_markdown().splitlines()[0] == r"|  | x\|y |"
    wanted = (
        r"a\textbackslash{}b\textasciicircum{}2 \textasciitilde{}\{\$c\} "
        r"\textless{}d\textgreater{} \textbar{}e \#1 \& & 1 \\"
    )
    assert table.to_latex().splitlines()[4] == wanted


@pytest.mark.parametrize("missing", ["", "-"])
def test_csv_and_pandas_have_every_value(missing):
    heading, *rows = csv.reader(TABLE.to_csv(missing).splitlines())
    assert heading == ["name", "accuracy", "half", "ids", "extra"]
    assert rows == [["a_1", "0.5", "0.625", "0 2", "3"], ["b", "0.25", missing, "1", missing]]
    frame = TABLE.to_pandas()
    assert frame["ids"][0] == "0 2" and frame["half"][1] is None


def test_html_escapes_its_texts():
    text = Table.of_cells(["A", "B"], [["<b>", "1"]]).to_html()
    assert "<td>&lt;b&gt;</td>" in text and text.startswith("<table") and "<th>A</th>" in text


def test_means_with_intervals():
    mse = Measure("mse", better="lower", fraction=False)
    assert mean_with_interval(np.array([50.0])) == "50.00"
    assert mean_with_interval(np.array([10.0, 12.0])) == "11.00 ± 12.71*"
    assert mean_with_interval(np.array([1.0, 2.0]), mse).endswith("*")  # no error is negative
    assert mean_with_interval(np.array([1e-3, 2e-3]), mse) == "0.0015 ± 0.006353*"
    assert mean_with_interval(np.array([4.0, 4.0]), mse) == "4 ± 0"
    (note,) = interval_notes([np.array([1.0]), np.array([10.0, 12.0])])
    assert note.startswith("With 2 seeds") and "* extends" in note
    assert interval_notes([np.array([50.0, 51.0, 52.0])]) == []
    assert interval_notes([np.array([1.0])]) == []
