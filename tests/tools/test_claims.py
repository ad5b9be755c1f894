"""The picture of the papers' claims: which cells it shows, and which tables it lacks."""

import csv

import pytest

import fedjax_pfl as pfl
from experiments.reproduction import paper_tables
from tools import claims


def a_table(queue, claim, states):
    """A measured table of the paper's first rows."""
    table, columns = paper_tables.load(claim.table), ("column", "row", "state", "paper", "ours")
    folder = queue / claim.table.replace("/", "-")
    folder.mkdir(parents=True)
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*columns, "ci95_half_width", "unit", "scale", "note"))
        for k, (line, state) in enumerate(zip(table.row, states, strict=False)):
            number = 50 + k if state == "measured" else ""
            writer.writerow([claim.column, line.name, state, 60 + k, number, 1, "%", "small", ""])


def test_every_claim_is_a_column_of_its_table():
    for claim in claims.CLAIMS:
        table = paper_tables.load(claim.table)
        assert claim.column in [column.name for column in table.column]
    assert len({claim.table.partition("/")[0] for claim in claims.CLAIMS}) == 5


def test_measured_cells_are_drawn_in_the_papers_order(tmp_path, capsys):
    first, second = claims.CLAIMS[0], claims.CLAIMS[3]
    a_table(tmp_path, first, ["measured", "not run", "measured"])
    a_table(tmp_path, second, ["measured", "measured"])
    rows = claims.measured(first, [tmp_path / "none", tmp_path])
    assert [row["paper"] for row in rows] == ["62", "60"]
    chart = claims.draw([(first, rows), (second, claims.measured(second, [tmp_path]))])
    names = [label.get_text() for label in chart.axes[0].get_yticklabels()]
    assert names == [paper_tables.load(first.table).row[k].title for k in (0, 2)]
    assert claims.main(["", str(tmp_path / "claims.png"), str(tmp_path)]) == 0
    assert (tmp_path / "claims.png").stat().st_size > 1000
    absent = [claim.table for claim in claims.CLAIMS if claim not in (first, second)]
    assert capsys.readouterr().out == f"not measured: {', '.join(absent)}\n"


def test_folders_without_a_claim_are_refused(tmp_path):
    with pytest.raises(pfl.InputError, match="table with a claim"):
        claims.main(["", str(tmp_path / "claims.png"), str(tmp_path)])
