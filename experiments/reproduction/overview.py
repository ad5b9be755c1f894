"""A table's picture, and one report of several: `report.md`, `report.html` and `report.csv`."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedjax_pfl.data.atomic_files import read_json
from fedjax_pfl.results.plots import COLOURS, MARKERS
from fedjax_pfl.results.table import Column, Table

from ..figures.drawing import Drawing
from ..outputs import html_page
from ..outputs.run_files import write_json, write_picture, write_text
from . import report as one_report
from .cells import NEAR, NO_NUMBER, verdict_of_table
from .full_cost import MACHINES, RATES, Cost, of_table
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
      cost: at full scale, or None if it wasn't counted.
    """

    name: str
    title: str
    report: Report | None = None
    state: str = "not made yet"
    cost: Cost | None = None

    @classmethod
    def finished(cls, request: Request, report: Report) -> "Part":
        """Return a table with its finished runs; cells without a number do not count."""
        count = sum((cells["state"] != NO_NUMBER).sum() for cells in report.cells.values())
        measured = int(sum((cells["seeds"] > 0).sum() for cells in report.cells.values()))
        state = f"{measured} of {count} cells"
        cost = saved_cost(request, report, measured)
        return cls(request.table.name, request.table.caption, report, state, cost)

    @property
    def file(self) -> str:
        return self.name.replace("/", "-")


def saved_cost(request: Request, report: Report, measured: int) -> Cost:
    """Return the cost at full scale, saved if as many cells were measured."""
    path = request.output / "full_cost.json"
    if path.exists():
        saved = read_json(path)
        if saved.pop("measured_cells", None) == measured:
            return Cost(**saved)
    cost = of_table(request, report.sections)
    write_json(path, {"measured_cells": measured, **asdict(cost)})
    return cost


def write(output: Path, title: str, parts: Sequence[Part]) -> None:
    """Write the report of the tables so far."""
    text = markdown(title, parts, output)
    write_text(output / "report.md", text)
    write_text(output / "report.html", html_page.page(title, text, output))
    write_text(output / "report.csv", overview_table(parts).to_csv())


def overview_table(parts: Sequence[Part]) -> Table:
    """Return a row for each table: its state, its verdict and its cost at full scale."""

    def pair(some: str, every: str) -> Callable[[Mapping], str]:
        return lambda row: f"{row[some]} of {row[every]}" if row[every] else "-"

    def number(key: str, divisor: float = 1.0) -> Callable[[Mapping], str]:
        return lambda row: f"{row[key] / divisor:,.3g}"

    hours = {f"full_hours_{one.key}": f"hours, {one.name}" for one in MACHINES}
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
        Column("full_gflop", "Full scale, PFLOP", number("full_gflop", 1e6)),
        *(Column(key, title, number(key)) for key, title in hours.items()),
    ]  # fmt: skip
    rows = []
    for part in parts:
        verdict = verdict_of_table([]) if part.report is None else part.report.verdict
        cost = part.cost
        row = {"table": part.name, "title": part.title, "state": part.state}
        row |= {"judged": part.report is not None, **verdict}
        row |= dict.fromkeys(("full_gflop", *hours))
        if cost is not None:
            row |= {"full_gflop": cost.gflop, **dict(zip(hours, cost.hours, strict=True))}
        rows.append(row)
    return Table(columns, rows)


def markdown(title: str, parts: Sequence[Part], output: Path) -> str:
    """Format the report with its existing pictures."""
    lines = [
        f"# {title}",
        overview_table(parts).to_markdown(),
        *cost_lines(parts),
        *missing(parts),
    ]
    for part in parts:
        if part.report is not None:
            lines.append(one_report.markdown(part.report, 2).rstrip("\n"))
            drawn = f"{part.file}/{PICTURE}"
            if (output / drawn).exists():
                lines.append(f"![{part.name}: the paper's numbers and ours]({drawn})")
    return "\n\n".join(lines) + "\n"


def cost_lines(parts: Sequence[Part]) -> list[str]:
    """Describe the costs at full scale."""
    costs = [part.cost for part in parts if part.cost is not None]
    if not costs:
        return []
    unknown = sum(one.unknown for one in costs)
    text = (
        "Full scale: local training of all runs of a table, counted from the paper's network, "
        "rounds, partition and seeds (1 PFLOP is 1e15 operations), times what a finished run at "
        "hand takes beyond plain training, such as FedDWA's second epoch. Without scoring and "
        "servers. Hours are those at one rate each; another network or machine has another:"
    )
    more = [f"{unknown} runs could not be counted."] if unknown else []
    return [text, RATES, *more]


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
