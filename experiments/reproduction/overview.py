"""A table's picture, and one report of several: `report.md`, `report.html` and `report.csv`."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedjax_pfl.results.plots import COLOURS, MARKERS
from fedjax_pfl.results.table import Column, Table

from ..figures.drawing import Drawing
from ..outputs import html_page
from ..outputs.run_files import write_picture, write_text
from . import report as one_report
from .cells import NEAR, NO_NUMBER, verdict_of_table
from .planning import Request
from .report import Report

PICTURE = "table.png"


@dataclass(frozen=True)
class Part:
    """One table of the report.

    Attributes:
      name: such as "feddwa/1".
      title: its caption.
      report: its numbers; None where it has none yet.
      state: how many cells are measured, or what is the matter.
    """

    name: str
    title: str
    report: Report | None = None
    state: str = "not made yet"

    @classmethod
    def finished(cls, request: Request, report: Report) -> "Part":
        """Return a table with its finished runs; cells without a number do not count."""
        count = sum((cells["state"] != NO_NUMBER).sum() for cells in report.cells.values())
        measured = int(sum((cells["seeds"] > 0).sum() for cells in report.cells.values()))
        state = f"{measured} of {count} cells"
        return cls(request.table.name, request.table.caption, report, state)

    @property
    def file(self) -> str:
        return self.name.replace("/", "-")


def write(output: Path, title: str, parts: Sequence[Part]) -> None:
    """Write the report of the tables so far."""
    text = markdown(title, parts, output)
    write_text(output / "report.md", text)
    write_text(output / "report.html", html_page.page(title, text, output))
    write_text(output / "report.csv", overview_table(parts).to_csv())


def overview_table(parts: Sequence[Part]) -> Table:
    """Return a row for each table: its state and its verdict."""

    def pair(some: str, every: str) -> Callable[[Mapping], str]:
        return lambda row: f"{row[some]} of {row[every]}" if row[every] else "-"

    columns = [
        Column("table", "Table", lambda row: f"{row['table']}: {row['title']}"),
        Column("state", "State"),
        Column("kendall_tau", "Kendall's tau", lambda row: f"{row['kendall_tau']:+.2f}"),
        Column("rows", "Rows", shown=False),
        Column("apart", "Told apart", pair("apart", "pairs")),
        Column("pairs", "Pairs", shown=False),
        Column("within", f"Within {NEAR:g}", pair("within", "compared")),
        Column("compared", "Compared", shown=False),
        Column("unexplained", "Unexplained",
               lambda row: str(row["unexplained"]) if row["judged"] else "-"),
    ]  # fmt: skip
    rows = []
    for part in parts:
        verdict = verdict_of_table([]) if part.report is None else part.report.verdict
        row = {"table": part.name, "title": part.title, "state": part.state}
        rows.append(row | {"judged": part.report is not None, **verdict})
    return Table(columns, rows)


def markdown(title: str, parts: Sequence[Part], output: Path) -> str:
    """Format the report with its existing pictures."""
    lines = [
        f"# {title}",
        overview_table(parts).to_markdown(),
        *missing(parts),
    ]
    for part in parts:
        if part.report is not None:
            lines.append(one_report.markdown(part.report, 2).rstrip("\n"))
            drawn = f"{part.file}/{PICTURE}"
            if (output / drawn).exists():
                lines.append(f"![{part.name}: the paper's numbers and ours]({drawn})")
    return "\n\n".join(lines) + "\n"


def missing(parts: Sequence[Part]) -> list[str]:
    """Return a sentence per missing data set, with the columns that need it."""
    problems: dict[str, list[str]] = {}
    for part in parts:
        for section in part.report.sections if part.report is not None else ():
            if section.problem:
                problems.setdefault(section.problem, []).append(
                    f"{part.name} ({section.column.title})"
                )
    lines = [f"- {text} Needed by {', '.join(who)}." for text, who in problems.items()]
    return ["## Missing data sets", "\n".join(lines)] if lines else []


def picture(report: Report) -> Drawing | None:
    """Draw each column's rows: the paper's numbers hollow, ours filled."""
    if not report.measured:
        return None
    most = max(len(report.cells[one.column.name]) for one in report.measured)
    drawing = Drawing.panels(len(report.measured), 4.4, 1.1 + 0.24 * most)
    for section, panel in zip(report.measured, drawing.axes, strict=True):
        cells = report.cells[section.column.name].dropna(subset=["ours"])
        cells = cells.sort_values("paper", ascending=False, kind="stable")[::-1]
        place = range(len(cells))
        panel.plot(cells["paper"], place, MARKERS[0], mfc="none", color=COLOURS[0])
        look = {"fmt": MARKERS[0], "ms": 4, "color": COLOURS[1]}
        panel.errorbar(cells["ours"], place, xerr=cells["ci95_half_width"], **look)
        panel.set_yticks(place, [line.title for line in cells["line"]], fontsize=7)
        panel.set_title(textwrap.fill(section.title, 52), fontsize=8)
        panel.set_xlabel(section.unit, fontsize=8)
        panel.tick_params(axis="x", labelsize=7)
        panel.grid(axis="x", alpha=0.3)
        panel.margins(y=0.5 / len(cells))
    drawing.figure.suptitle(
        f"{report.table.name}, {report.scale}: hollow the paper's, filled ours with 95 % interval",
        fontsize=9,
    )
    return drawing


def write_table_picture(output: Path, report: Report) -> None:
    """Write the picture of a table into its folder, if a cell was measured."""
    drawing = picture(report)
    if drawing is not None:
        write_picture(output / PICTURE, drawing.figure)
