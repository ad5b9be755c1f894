"""A paper's table beside measured numbers: Markdown, CSV, JSON and a picture."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl.results.intervals import half_width, interval_notes
from fedjax_pfl.results.notes import grouped, over
from fedjax_pfl.results.table import Table

from ..cli import flag_roles, flags
from ..figures.scores import SCORES
from ..outputs.run_files import write_csv, write_json, write_picture, write_text
from . import datasets
from .paper_tables import REDUCED, PaperTable
from .picture import PICTURE, picture
from .quantities import ACCURACY
from .table_cells import (
    DATA,
    DIVERGED,
    MEASURED,
    NEAR,
    SCALE,
    UNEXPLAINED,
    Cells,
    ColumnRuns,
    cells_of,
    rounded_for_ties,
    verdict,
    verdict_of_table,
)

KNOWN = {
    SCALE: "fewer rounds, samples or a smaller network than the paper's",
    DIVERGED: "local training of some of our clients went non-finite",
    DATA: "another data set in the place of the paper's",
    UNEXPLAINED: "nothing known explains it",
}
# Columns of table.csv.
COLUMNS = [
    "table", "scale", "reading", "column", "note", "row", "algorithm", "state", "unit", "paper",
    "paper_std", "ours", "difference", "ci95_half_width", "seeds", "within", "explained_by",
]  # fmt: skip
HEADING = ["Difference ± 95 %", "Place: paper", "ours", "Seeds", "Explained by"]


@dataclass(frozen=True)
class Report:
    """Everything written and shown for a table."""

    table: PaperTable
    scale: str
    more: tuple[str, ...]
    sections: tuple[ColumnRuns, ...]
    reading: str | None = None

    @cached_property
    def cells(self) -> dict[str, Cells]:
        """The cells of every column, by its name."""
        return {one.column.name: cells_of(self.table, self.scale, one) for one in self.sections}

    @cached_property
    def verdicts(self) -> dict[str, dict[str, Any]]:
        """The verdict on every column, by its name."""
        columns = [one.column for one in self.sections]
        return {column.name: verdict(self.cells[column.name], column) for column in columns}

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict on the table."""
        return verdict_of_table(list(self.verdicts.values()))

    @property
    def measured(self) -> list[ColumnRuns]:
        """The columns with a number of ours; others have no table."""
        return [one for one in self.sections if self.cells[one.column.name]["ours"].notna().any()]

    @property
    def reduced(self) -> bool:
        """Whether the scale changes anything of the paper's setting."""
        parts = (self.table, *(one.column for one in self.sections))
        return any(part.changes(self.scale) for part in parts)

    @property
    def tuned(self) -> str:
        """What small and medium scale chose for agreement, if this is one of them, or ""."""
        return self.table.tuned_for_agreement if self.scale in REDUCED else ""

    def title(self) -> str:
        return f"{self.table.paper}, {self.table.table}: {self.table.caption}"

    def meaning(self) -> list[str]:
        """Describe the numbers in sentences."""
        table, lines = self.table, []
        quantities = {one.quantity: one.measure for one in table.column}
        if quantities.pop(ACCURACY, None):
            whom = "" if table.over == "all" else " of the clients selected for the next round"
            lines.append(
                f"Accuracy in percent on the clients' own test samples, {SCORES[table.score]}, "
                f"mean over {table.average}{whom} unless a title says otherwise."
            )
            own = [one.title for one in table.row if table.over_of(one) != table.over]
            lines += [f"Over all clients: {', '.join(own)}."] if own else []
        costs = "; ".join(one.meaning for one in quantities.values())
        lines += [f"Costs are of the last round: {costs}."] if costs else []
        lines.append(
            "± 95 %: half of Student's interval over the seeds. Place: among the algorithms "
            "measured here."
        )
        lines += [] if table.printed else ["The paper shows these numbers only in a picture."]
        lines.append(_scale(table, self.scale if self.reduced else "full"))
        own = table.row_changes(self.scale).items()
        changes = "; ".join(f"{title} with {' '.join(words)}" for title, words in own)
        lines += [f"At this scale only: {changes}."] if changes else []
        if self.reading:
            differs = "; ".join(table.differences(self.reading, self.scale))
            lines.append(f"As the {self.reading} has it where paper and code differ: {differs}.")
        more = flags.given_words(flags.parse(["run", *self.more]), flag_roles.NEUTRAL)
        if more:
            lines.append(f"Changed on the command line: {' '.join(more)}.")
        if any(section.note == datasets.NOTE for section in self.sections):
            lines.append("Blank samples: costs depend on shapes and numbers, hardly on content.")
        if any(section.other_data for section in self.sections):
            lines.append("On another data set no difference is given: it would mean nothing.")
        return lines

    def missing(self) -> list[str]:
        """Return a sentence per missing data set, with the columns that need it."""
        problems: dict[str, list[str]] = {}
        for section in self.sections:
            if section.problem:
                problems.setdefault(section.problem, []).append(section.column.title)
        return [f"Not run: {'; '.join(who)}. {text}" for text, who in problems.items()]

    def verdict_lines(self) -> list[str]:
        """Describe the verdict in sentences."""
        total, lines = self.verdict, []
        if total["kendall_tau"] is not None:
            lines.append(
                "Kendall's tau between the paper's order of the rows and ours: "
                f"{total['kendall_tau']:+.2f}, the mean over the columns (1: the same order, 0: "
                f"none). The 95 % intervals of {total['apart']} of {total['pairs']} pairs of rows "
                "do not overlap; the other pairs are not told apart."
            )
        if self.tuned:
            lines.append(f"Tuned for agreement, so no evidence for the paper's order: {self.tuned}")
        if total["compared"]:
            share = 100 * total["within"] / total["compared"]
            others = f"{total['unexplained']} of the others are unexplained"
            if self.reduced and not total["unexplained"]:
                others = "at this scale no cell need be"
            lines.append(
                f"{total['within']} of {total['compared']} cells ({share:.0f} %) are within "
                f"{NEAR:g} points of the paper's number (costs: {NEAR:g} %); {others}."
            )
        return lines or ["No cell can be compared with the paper yet."]

    def explanations(self) -> dict[str, str]:
        """Describe the names in the column "Explained by"."""
        used = {
            name for cells in self.cells.values() for names in cells["explained_by"]
            for name in names
        }  # fmt: skip
        known = KNOWN | {one.by: one.text for one in self.table.explain}
        return {name: text for name, text in known.items() if name in used}


def _scale(table: PaperTable, scale: str) -> str:
    if scale == "full":
        return "FULL SCALE: the paper's setting, as far as it is stated (see the presets)."
    if scale == "network":
        return (
            "NETWORK SCALE: the paper's network, clients, rates and epochs; fewer samples, rounds "
            f"and seeds ({' '.join(table.changes(scale))}). Accuracies lie below the paper's; the "
            "order of the algorithms can be compared."
        )
    kind = "far from" if scale == "small" else "nearer to, but not"
    return (
        f"{scale.upper()} SCALE: {kind} the paper's setting ({' '.join(table.changes(scale))}). "
        "The numbers are NOT comparable with the paper's; at most the order of the algorithms is."
    )


def footnotes(section: ColumnRuns, cells: Cells) -> list[str]:
    """Return the notes below a column's table, a line each."""
    accuracy = section.column.quantity == ACCURACY
    ours = cells[cells["seeds"] > 0]
    means = ours[~ours["single"]]
    titles = [line.title for line in means["line"]]
    notes = grouped(dict(zip(titles, means["remarks"], strict=True)))
    if accuracy and means["clients"].nunique() > 1:
        pairs = zip(titles, means["clients"], strict=True)
        each = "; ".join(f"{title}: {over(clients)}" for title, clients in pairs)
        notes.append(f"Ours are means over different clients, which do not compare: {each}.")
    return notes + interval_notes(ours["scores"], *_range(accuracy))


def _range(accuracy: bool) -> tuple[float, float]:
    return (0.0, 100.0) if accuracy else (-np.inf, np.inf)


def places(numbers: pd.Series) -> list[str]:
    """Return ranks, 1 for the largest; equal numbers share a rank; "-" without a number."""
    rank = numbers.map(rounded_for_ties, na_action="ignore").rank(method="min", ascending=False)
    return ["-" if np.isnan(place) else f"{place:.0f}" for place in rank]


def column_table(section: ColumnRuns, cells: Cells) -> Table:
    """Return the table of a column."""
    low, high = ends = _range(section.column.quantity == ACCURACY)
    sign = 1 if section.column.measure.more else -1
    placed = cells["ours"].notna()
    if cells["paper"].notna().any():  # else the paper has only a picture
        placed &= cells["paper"].notna()
    papers, ours = (places(sign * cells[name].where(placed)) for name in ("paper", "ours"))

    def number(value: float, half: float, ends=ends, form: str = ".2f") -> str:
        if np.isnan(value):
            return "-"
        return f"{value:{form}}" + (
            "" if np.isnan(half) else f" ± {half_width(value, half, *ends)}"
        )

    def before(value: float, digits: int) -> str:  # of a relative column
        return "" if np.isnan(value) else f" ({float(f'{value:.{digits}g}'):g})"

    body = [
        [
            cell.line.title,
            number(cell.paper, cell.paper_std, (-np.inf, np.inf)) + before(cell.printed, 6),
            number(cell.ours, cell.ci95_half_width) + before(cell.own, 3)
            if cell.state == MEASURED else cell.state,
            number(cell.difference, cell.ci95_half_width, (min(low, -high), high), "+.2f"),
            papers[k],
            ours[k],
            str(cell.seeds or "-"),
            ", ".join(cell.explained_by),
        ]
        for k, cell in enumerate(cells.itertuples())
    ]  # fmt: skip
    heading = ["Algorithm", f"Paper {section.unit}", f"Ours {section.unit}", *HEADING]
    return Table.of_cells(heading, body)


def verdict_table(report: Report) -> Table:
    """Return the verdicts on the columns."""
    body = []
    for section in report.measured:
        one = report.verdicts[section.column.name]
        tau = "-" if one["kendall_tau"] is None else f"{one['kendall_tau']:+.2f}"
        explained = one["compared"] - one["within"] - one["unexplained"]
        body.append([section.column.title, tau, one["rows"], f"{one['apart']} of {one['pairs']}",
                     f"{one['within']} of {one['compared']}", explained,
                     one["unexplained"]])  # fmt: skip
    head = ["Column", "Kendall's tau", "Rows", "Told apart", f"Within {NEAR:g}", "Explained",
            "Unexplained"]  # fmt: skip
    return Table.of_cells(head, body)


def markdown(report: Report) -> str:
    """Format the page of a table."""
    parts = [f"# {report.title()}", *report.meaning(), *report.missing()]
    parts += ["## Verdict", *report.verdict_lines(), verdict_table(report).to_markdown()]
    known = [f"- **{name}**: {text}." for name, text in report.explanations().items()]
    parts += ["\n".join(known)] if known else []
    for section in report.measured:  # the sentences above say why others are not
        cells = report.cells[section.column.name]
        parts += [f"## {section.heading(report.scale)}"]
        parts += [column_table(section, cells).to_markdown(), *footnotes(section, cells)]
    return "\n\n".join(parts) + "\n"


def write(output: Path, report: Report) -> None:
    """Write `table.md`, `table.csv` with a line for each cell, the verdict in `table.json`, and a
    picture if a cell was measured."""
    write_text(output / "table.md", markdown(report))
    write_json(output / "table.json", summary(report))
    facts = {"table": report.table.name, "scale": report.scale, "reading": report.reading}
    cells: Cells = pd.concat([
        report.cells[one.column.name].assign(
            **facts, column=one.column.name, note=one.note, unit=one.unit
        )
        for one in report.sections
    ])  # fmt: skip
    cells["algorithm"] = [line.algorithm for line in cells["line"]]
    cells["within"] = cells["within"].astype(object).where(cells["difference"].notna())
    cells["explained_by"] = cells["explained_by"].map("; ".join)
    write_csv(output / "table.csv", cells[COLUMNS])
    if (drawing := picture(report)) is not None:
        write_picture(output / PICTURE, drawing.figure)


def summary(report: Report) -> dict[str, Any]:
    """Return the verdict as JSON values."""
    return {
        "table": report.table.name,
        "title": report.title(),
        "scale": report.scale,
        "reading": report.reading,
        "verdict": report.verdict,
        "tuned_for_agreement": report.tuned,
        "columns": report.verdicts,
        "further_off": [
            {"column": name, "row": cell.row, "explained_by": list(cell.explained_by)}
            for name, cells in report.cells.items()
            for cell in cells.itertuples()
            if cell.explained_by
        ],
        "explanations": {one.by: one.text for one in report.table.explain},
    }
