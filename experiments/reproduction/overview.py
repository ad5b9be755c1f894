"""A table's picture, and one report of several: `report.md`, `report.html` and `report.csv`."""

import base64
import csv
import html
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedjax_pfl.data.whole_files import read_json
from fedjax_pfl.results.table import Table

from ..figures.drawing import COLOURS, MARKERS, Figure, panels
from ..outputs.run_files import aside, write_json, write_text
from . import report as one_report
from .entries import NEAR, NO_NUMBER
from .full_cost import MACHINES, RATES, Cost, of_table
from .planning import Command
from .report import Report

PICTURE = "table.png"
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
"""


@dataclass(frozen=True)
class Part:
    """One table of the report.

    Attributes:
      name: such as "feddwa/1".
      title: its caption.
      report: its numbers; None where it has none yet.
      state: "finished", or what is the matter.
      cost: at full scale, or None if it wasn't counted.
    """

    name: str
    title: str
    report: Report | None
    state: str
    cost: Cost | None = None

    @classmethod
    def waiting(cls, asked: Command) -> "Part":
        """One that has not been made yet."""
        return cls(asked.table.name, asked.table.caption, None, "not made yet")

    @classmethod
    def made(cls, asked: Command, report: Report) -> "Part":
        """One whose runs are finished, those without data aside."""
        cells = [e for found in report.entries.values() for e in found if e.state != NO_NUMBER]
        measured = sum(entry.scores is not None for entry in cells)
        state = f"{measured} of {len(cells)} cells"
        cost = saved_cost(asked, report, measured)
        return cls(asked.table.name, asked.table.caption, report, state, cost)

    @property
    def file(self) -> str:
        return self.name.replace("/", "-")


def saved_cost(asked: Command, report: Report, measured: int) -> Cost:
    """The cost at full scale, from the table's folder if as many cells were measured then."""
    path = asked.output / "full_cost.json"
    if path.exists():
        found = read_json(path)
        if found.pop("measured_cells", None) == measured:
            return Cost(**found)
    cost = of_table(asked, report.sections)
    write_json(path, {"measured_cells": measured, **asdict(cost)})
    return cost


def write(output: Path, title: str, parts: Sequence[Part]) -> None:
    """Writes the report as far as it goes, again after each table."""
    text = markdown(title, parts, output)
    write_text(output / "report.md", text)
    write_text(output / "report.html", as_html(title, text, output))
    with aside(output / "report.csv") as path, path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("table", "state", "kendall_tau", "rows", "apart", "pairs", "within",
                         "compared", "unexplained", "full_gflop",
                         *(f"full_hours_{one.key}" for one in MACHINES)))  # fmt: skip
        for part in parts:
            verdict = part.report and part.report.verdict
            line = [part.name, part.state]
            line += ["", 0, 0, 0, 0, 0, 0] if not verdict else [
                "" if verdict.tau is None else verdict.tau, verdict.rows, verdict.apart,
                verdict.pairs, verdict.near, verdict.compared, verdict.unexplained,
            ]  # fmt: skip
            cost = part.cost
            empty = [""] * (1 + len(MACHINES))
            writer.writerow([*line, *(empty if cost is None else [cost.gflop, *cost.hours])])


def markdown(title: str, parts: Sequence[Part], output: Path) -> str:
    """The whole report; pictures that are there are shown."""
    head = ["Table", "State", "Kendall's tau", "Told apart", f"Within {NEAR:g}", "Unexplained",
            "Full scale, PFLOP", *(f"hours, {one.name}" for one in MACHINES)]  # fmt: skip
    rows = []
    for part in parts:
        verdict = part.report and part.report.verdict
        tau = "-" if not verdict or verdict.tau is None else f"{verdict.tau:+.2f}"
        apart = f"{verdict.apart} of {verdict.pairs}" if verdict and verdict.pairs else "-"
        near = f"{verdict.near} of {verdict.compared}" if verdict and verdict.compared else "-"
        cost = ["-"] * (1 + len(MACHINES))
        if part.cost is not None:
            cost = [f"{x:,.3g}" for x in (part.cost.gflop / 1e6, *part.cost.hours)]
        rows.append([f"{part.name}: {part.title}", part.state, tau, apart, near,
                     str(verdict.unexplained) if verdict else "-", *cost])  # fmt: skip
    lines = [
        f"# {title}",
        Table.of_cells(head, rows).to_markdown(),
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
    """What the costs at full scale are."""
    found = [part.cost for part in parts if part.cost is not None]
    if not found:
        return []
    unknown = sum(one.unknown for one in found)
    text = (
        "Full scale: local training of all runs of a table, counted from the paper's network, "
        "rounds, partition and seeds (1 PFLOP is 1e15 operations), times what a finished run at "
        "hand takes beyond plain training, such as FedDWA's second epoch. Without scoring and "
        "servers. Hours are those at one rate each; another network or machine has another:"
    )
    more = [f"{unknown} runs could not be counted."] if unknown else []
    return [text, RATES, *more]


def missing(parts: Sequence[Part]) -> list[str]:
    """A sentence for each data set that isn't there, once, with the columns that need it."""
    problems: dict[str, list[str]] = {}
    for part in parts:
        for section in part.report.sections if part.report is not None else ():
            if section.problem:
                problems.setdefault(section.problem, []).append(
                    f"{part.name} ({section.column.title})"
                )
    lines = [f"- {said} Needed by {', '.join(who)}." for said, who in problems.items()]
    return ["## Missing data sets", "\n".join(lines)] if lines else []


def picture(report: Report) -> Figure | None:
    """Each column's rows: the paper's numbers (hollow) and ours (filled), in the paper's order."""
    shown = [one for one in report.sections
             if any(e.ours is not None for e in report.entries[one.column.name])]  # fmt: skip
    if not shown:
        return None
    most = max(len(report.entries[one.column.name]) for one in shown)
    chart, axes = panels(len(shown), 4.4, 1.1 + 0.24 * most)
    for section, panel in zip(shown, axes, strict=True):
        entries = [e for e in report.entries[section.column.name] if e.ours is not None]
        entries.sort(key=lambda e: (e.paper is None, -(e.paper or 0)))
        for at, entry in enumerate(reversed(entries)):
            if entry.paper is not None:
                panel.plot(entry.paper, at, MARKERS[0], mfc="none", color=COLOURS[0])
            panel.errorbar(entry.ours, at, xerr=entry.half, fmt=MARKERS[0], ms=4, color=COLOURS[1])
        panel.set_yticks(range(len(entries)), [e.line.title for e in reversed(entries)], fontsize=7)
        panel.set_title(textwrap.fill(section.title, 52), fontsize=8)
        panel.set_xlabel(one_report.heading(section)[1].removeprefix("Paper "), fontsize=8)
        panel.tick_params(axis="x", labelsize=7)
        panel.grid(axis="x", alpha=0.3)
        panel.margins(y=0.5 / len(entries))
    text = (
        f"{report.table.name}, {report.scale}: hollow the paper's, filled ours with 95 % interval"
    )
    chart.suptitle(text, fontsize=9)
    return chart


def write_picture(output: Path, report: Report) -> None:
    """Writes the picture of a table into its folder, if a cell was measured."""
    chart = picture(report)
    if chart is not None:
        with aside(output / PICTURE) as part:
            chart.savefig(part, format="png")


def as_html(title: str, text: str, output: Path) -> str:
    """The Markdown of a report as one file, pictures inside."""
    parts = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        if match := re.match(r"(#+) (.*)$", block):
            parts.append(f"<h{len(match[1])}>{_inline(match[2])}</h{len(match[1])}>")
        elif block.startswith("| "):
            parts.append(_table(lines))
        elif block.startswith("- "):
            items = "".join(f"<li>{_inline(line[2:])}</li>" for line in lines)
            parts.append(f"<ul>{items}</ul>")
        elif match := re.match(r"!\[(.*)\]\((.*)\)$", block):
            data = base64.b64encode((output / match[2]).read_bytes()).decode()
            alt = html.escape(match[1], quote=True)
            parts.append(f'<img alt="{alt}" src="data:image/png;base64,{data}">')
        else:
            parts.append(f"<p>{_inline(block)}</p>")
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _inline(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text))


def _table(lines: Sequence[str]) -> str:
    rows = [[_inline(cell.strip()) for cell in line[2:-2].split(" | ")] for line in lines]
    head, _, *body = rows
    first = "".join(f"<th>{cell}</th>" for cell in head)
    rest = "".join(f"<tr>{''.join(f'<td>{c}</td>' for c in row)}</tr>\n" for row in body)
    return f"<table><tr>{first}</tr>\n{rest}</table>"
