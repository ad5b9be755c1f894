"""Picture of the five papers' claims: `python -m tools.claims docs/images/claims.png PAGES`.

One panel for each paper: the column of its reproduced table at medium scale that shows what the
paper claims, its numbers and ours, from the pages in the folder PAGES (docs/reproduced). Tables
without a page are left out, and named.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.cli import shell
from experiments.figures.drawing import Drawing
from experiments.outputs.run_files import atomic_write
from experiments.reproduction import paper_tables
from experiments.reproduction.saved_cells import page_of
from fedjax_pfl.results.plots import COLOURS, MARKERS
from fedjax_pfl.utils.errors import InputError
from tools import arguments

SCALE = "medium"
ROW = re.compile(
    r"^\| (.+?) \| (\d+\.\d+)(?: ± [\d.]+)? \| (\d+\.\d+)(?: ± ([\d.]+))? \|", re.MULTILINE
)


class Claim(NamedTuple):
    """A column of a paper's table that represents its claim."""

    table: str
    column: str
    statement: str


class Row(NamedTuple):
    """A measured row of a column, with half of the 95 % interval of our number."""

    title: str
    paper: float
    ours: float
    half: float


class Column(NamedTuple):
    """A claim's column on the page of its table."""

    title: str
    tau: float
    rows: list[Row]


CLAIMS = (
    Claim("feddwa/1", "practical1_cifar10", "FedDWA: groups of clients find each other"),
    Claim("waffle/1", "mnist_c", "WAFFLE: one client among others with other labels"),
    Claim("cwfedavg/1", "practical_cifar10", "cwFedAVG: aggregation class by class, with WDR"),
    Claim("plga/2", "mnist_client", "PLGA: late clients are compensated"),
    Claim("pfedla/2", "fashion_mnist_10", "pFedLA: weights for each layer"),
)


def measured(claim: Claim, pages: Path) -> Column | None:
    """Return the claim's column with its measured rows in the paper's order, if it has any."""
    path = pages / f"{page_of(claim.table, SCALE)}.md"
    if not path.exists():
        return None
    page = path.read_text(encoding="utf-8")
    table = paper_tables.load(claim.table)
    (title,) = (re.escape(one.title) for one in table.column if one.name == claim.column)
    tau = re.search(rf"^\| {title} \| ([+-]\d\.\d\d) \|", page, re.MULTILINE)
    section = re.search(rf"^## ({title}(?: \(on \w+)?)(.*?)(?=^## |\Z)", page, re.DOTALL | re.M)
    if not tau or not section:
        return None
    rows = [Row(name, *(float(one or 0) for one in row)) for name, *row in ROW.findall(section[2])]
    heading = f"{section[1]})" if "(on " in section[1] else section[1]
    return Column(heading, float(tau[1]), sorted(rows, key=lambda row: -row.paper))


def draw(found: Sequence[tuple[Claim, Column]]):
    """Draw a panel per claim: the paper's numbers hollow, ours filled with the 95 % interval."""
    most = max(len(column.rows) for _, column in found)
    drawing = Drawing.panels(len(found), 4.2, 1.2 + 0.22 * most)
    for (claim, column), panel in zip(found, drawing.axes, strict=True):
        rows = column.rows[::-1]
        for at, row in enumerate(rows):
            panel.plot(row.paper, at, MARKERS[0], mfc="none", color=COLOURS[0])
            panel.errorbar(row.ours, at, xerr=row.half, fmt=MARKERS[0], ms=4, color=COLOURS[1])
        panel.set_yticks(range(len(rows)), [row.title for row in rows], fontsize=7)
        panel.set_title(f"{claim.statement}\n{column.title}, {SCALE} scale", fontsize=8)
        panel.set_xlabel("%", fontsize=8)
        panel.tick_params(axis="x", labelsize=7)
        panel.grid(axis="x", alpha=0.3)
        panel.margins(y=0.5 / len(rows))
    return drawing.figure


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture from the pages in a folder.

    Raises:
      InputError: the folder has none of these columns.
    """
    args = arguments.parse("claims", __doc__, argv, ["picture", "pages"])
    columns = {claim: measured(claim, args.pages) for claim in CLAIMS}
    found = [(claim, column) for claim, column in columns.items() if column]
    if not found:
        raise InputError(f"{args.pages} has no page of a table with a claim.")
    absent = [claim.table for claim, column in columns.items() if not column]
    if absent:
        print(f"not measured: {', '.join(absent)}")
    with atomic_write(args.picture) as path:
        draw(found).savefig(path, format="png", dpi=110)
    return 0


if __name__ == "__main__":
    shell.leave(main)
