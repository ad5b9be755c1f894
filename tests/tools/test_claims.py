"""The picture of the papers' claims: which cells it shows, and which tables it lacks."""

import pytest

import fedjax_pfl as pfl
from experiments.reproduction import paper_tables
from tools import claims

PAGE = """# A table

| Column | Kendall's tau | Rows |
| --- | ---: | ---: |
| {title} | -0.33 | 2 |

## {title} (on digits instead of the paper's data set), medium by --rounds=3 too

| Algorithm | Paper % | Ours % | Difference | Place: paper |
| --- | ---: | ---: | ---: | ---: |
| First | 60.00 ± 0.10 | 51.50 ± 1.25 | - | 2 |
| Absent | 70.00 | not run | - | - |
| Ours alone | - | 50.00 ± 1.00 | - | - |
| Second | 62.00 | 50.00 | - | 1 |

## Another column

| Other | 90.00 | 91.00 | - | 1 |
"""


def write_page(folder, claim):
    """A page of a claim's table with two measured rows of the paper."""
    table = paper_tables.load(claim.table)
    (title,) = (column.title for column in table.column if column.name == claim.column)
    name = claim.table.replace("/", "-")
    (folder / f"{name}-medium.md").write_text(PAGE.format(title=title), encoding="utf-8")
    return title


def test_every_claim_is_a_column_of_its_table():
    for claim in claims.CLAIMS:
        table = paper_tables.load(claim.table)
        assert claim.column in [column.name for column in table.column]
    assert len({claim.table.partition("/")[0] for claim in claims.CLAIMS}) == 5


def test_measured_cells_are_drawn_in_the_papers_order(tmp_path, capsys):
    first, second = claims.CLAIMS[0], claims.CLAIMS[3]
    title = write_page(tmp_path, first)
    write_page(tmp_path, second)
    column = claims.measured(first, tmp_path)
    assert column is not None and column == claims.Column(
        f"{title} (on digits)",
        -0.33,
        [claims.Row("Second", 62.0, 50.0, 0.0), claims.Row("First", 60.0, 51.5, 1.25)],
    )
    chart = claims.draw([(first, column)])
    names = [label.get_text() for label in chart.axes[0].get_yticklabels()]
    assert names == ["First", "Second"]
    assert claims.main(["", str(tmp_path / "claims.png"), str(tmp_path)]) == 0
    assert (tmp_path / "claims.png").stat().st_size > 1000
    absent = [claim.table for claim in claims.CLAIMS if claim not in (first, second)]
    assert capsys.readouterr().out == f"not measured: {', '.join(absent)}\n"


def test_folders_without_a_claim_are_refused(tmp_path):
    with pytest.raises(pfl.InputError, match="no page of a table with a claim"):
        claims.main(["", str(tmp_path / "claims.png"), str(tmp_path)])
