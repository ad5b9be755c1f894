"""Picture of the five papers' claims: `python -m tools.claims docs/images/claims.png QUEUE...`.

One panel for each paper whose table was measured in one of the queues (`experiments.reproduce`
with several tables, or a folder of single ones): the column that shows what the paper claims, its
numbers and ours. Tables that no queue has are left out, and named.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.cli import shell
from experiments.figures.drawing import Drawing
from experiments.outputs.run_files import atomic_write
from experiments.reproduction import paper_tables
from fedjax_pfl.results.plots import COLOURS, MARKERS
from fedjax_pfl.utils.errors import InputError


class Claim(NamedTuple):
    """A column of a paper's table that represents its claim."""

    table: str
    column: str
    statement: str


CLAIMS = (
    Claim("feddwa/1", "practical1_cifar10", "FedDWA: groups of clients find each other"),
    Claim("waffle/1", "mnist_c", "WAFFLE: one client among others with other labels"),
    Claim("cwfedavg/1", "practical_cifar10", "cwFedAVG: aggregation class by class, with WDR"),
    Claim("plga/2", "mnist_client", "PLGA: late clients are compensated"),
    Claim("pfedla/2", "fashion_mnist_10", "pFedLA: weights for each layer"),
)


def measured(claim: Claim, queues: Sequence[Path]) -> list[dict[str, str]]:
    """Return the measured rows of the claim's column, in the paper's order, or []."""
    for queue in queues:
        path = queue / claim.table.replace("/", "-") / "table.csv"
        if not path.exists():
            continue
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["column"] == claim.column]
        rows = [row for row in rows if row["state"] == "measured" and row["paper"]]
        if rows:
            return sorted(rows, key=lambda row: -float(row["paper"]))
    return []


def draw(found: Sequence[tuple[Claim, list[dict[str, str]]]]):
    """Draw a panel per claim: the paper's numbers hollow, ours filled with the 95 % interval."""
    most = max(len(rows) for _, rows in found)
    drawing = Drawing.panels(len(found), 4.2, 1.2 + 0.22 * most)
    for (claim, rows), panel in zip(found, drawing.axes, strict=True):
        table = paper_tables.load(claim.table)
        titles = {line.name: line.title for line in table.row}
        for at, row in enumerate(reversed(rows)):
            panel.plot(float(row["paper"]), at, MARKERS[0], mfc="none", color=COLOURS[0])
            half = float(row["ci95_half_width"] or 0)
            panel.errorbar(
                float(row["ours"]), at, xerr=half, fmt=MARKERS[0], ms=4, color=COLOURS[1]
            )
        panel.set_yticks(range(len(rows)), [titles[r["row"]] for r in reversed(rows)], fontsize=7)
        (column,) = (one for one in table.column if one.name == claim.column)
        text = f"{column.title}, {rows[0]['scale']} scale"
        note = rows[0]["note"].replace(" instead of the paper's data set", "")
        panel.set_title(f"{claim.statement}\n{text}{f' ({note})' if note else ''}", fontsize=8)
        panel.set_xlabel(rows[0]["unit"], fontsize=8)
        panel.tick_params(axis="x", labelsize=7)
        panel.grid(axis="x", alpha=0.3)
        panel.margins(y=0.5 / len(rows))
    return drawing.figure


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture of the first argument from the queues behind it.

    Raises:
      InputError: no queue has one of these columns.
    """
    _, picture, *words = sys.argv if argv is None else argv
    queues = [Path(word) for word in words]
    found = [(claim, measured(claim, queues)) for claim in CLAIMS]
    absent = [claim.table for claim, rows in found if not rows]
    if absent:
        print(f"not measured: {', '.join(absent)}")
    found = [one for one in found if one[1]]
    if not found:
        raise InputError("None of these folders has a table with a claim.")
    with atomic_write(Path(picture)) as path:
        draw(found).savefig(path, format="png", dpi=110)
    return 0


if __name__ == "__main__":
    shell.leave(main)
