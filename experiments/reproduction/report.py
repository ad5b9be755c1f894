"""A paper's table beside measured numbers: sections, Markdown, CSV, JSON, and the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedjax_pfl.results.intervals import half_width, interval_notes
from fedjax_pfl.results.notes import grouped, over
from fedjax_pfl.results.table import Column, Table

from ..cli.console import print_table
from ..figures.scores import SCORES
from ..outputs.run_files import write_json, write_text
from . import datasets, verdicts
from .entries import NEAR, Entry, Section, entries, ranked
from .paper_tables import PaperTable
from .quantities import ACCURACY
from .verdicts import DATA, DIVERGED, SCALE, UNEXPLAINED, Verdict

KNOWN = {
    SCALE: "fewer rounds, samples or a smaller network than the paper's",
    DIVERGED: "local training of some of our clients went non-finite",
    DATA: "another data set in the place of the paper's",
    UNEXPLAINED: "nothing known explains it",
}
PLACES = (
    "--data_dir", "--output_dir", "--compilation_cache", "--checkpoint_seconds", "--tensorboard",
    "--wandb", "--mlflow",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Everything written and shown for a table."""

    table: PaperTable
    scale: str
    more: tuple[str, ...]
    sections: tuple[Section, ...]
    reading: str | None = None

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """Of every column, by its name."""
        return {one.column.name: entries(self.table, one) for one in self.sections}

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Of every column, by its name."""
        return {
            one.column.name: verdicts.of_column(
                self.table, self.scale, one, self.entries[one.column.name]
            )
            for one in self.sections
        }

    @property
    def verdict(self) -> Verdict:
        return verdicts.of_table(list(self.verdicts.values()))

    @property
    def reduced(self) -> bool:
        """Whether the scale changes anything of the paper's setting."""
        parts = (self.table, *(one.column for one in self.sections))
        return any(part.changes(self.scale) for part in parts)

    @property
    def tuned(self) -> str:
        """What small and medium scale chose for agreement, if this is one of them, or ""."""
        return self.table.tuned_for_agreement if self.scale != "full" else ""

    def title(self) -> str:
        return f"{self.table.paper}, {self.table.table}: {self.table.caption}"

    def said(self) -> list[str]:
        """The meaning of the numbers, in sentences."""
        table, found = self.table, {one.quantity: one.measure for one in self.table.column}
        lines = []
        if found.pop(ACCURACY, None):
            whom = "" if table.over == "all" else " of the clients selected for the next round"
            lines.append(
                f"Accuracy in percent on the clients' own test samples, {SCORES[table.score]}, "
                f"mean over {table.average}{whom} unless a title says otherwise."
            )
        costs = "; ".join(one.said for one in found.values())
        lines += [f"Costs are of the last round: {costs}."] if costs else []
        lines.append(
            "± 95 %: half of Student's interval over the seeds. Place: among the algorithms "
            "measured here."
        )
        lines += [] if table.printed else ["The paper shows these numbers as a picture alone."]
        lines.append(_scale(table, self.scale if self.reduced else "full"))
        own = table.row_changes(self.scale).items()
        said = "; ".join(f"{title} with {' '.join(words)}" for title, words in own)
        lines += [f"At this scale only: {said}."] if said else []
        if self.reading:
            differs = "; ".join(table.said_of(self.reading, self.scale))
            lines.append(f"As the {self.reading} has it where paper and code differ: {differs}.")
        more = [word for word in self.more if not word.startswith(PLACES)]
        if more:
            lines.append(f"Changed on the command line: {' '.join(more)}.")
        if any(section.note == datasets.NOTE for section in self.sections):
            lines.append("Blank samples: costs depend on shapes and numbers, hardly on content.")
        if any(section.other_data for section in self.sections):
            lines.append("On another data set no difference is given: it would mean nothing.")
        return lines

    def missing(self, sections: Sequence[Section]) -> list[str]:
        """A sentence for every data set that isn't there, with the columns that need it."""
        problems: dict[str, list[str]] = {}
        for section in sections:
            if section.problem:
                problems.setdefault(section.problem, []).append(section.column.title)
        return [f"Not run: {'; '.join(who)}. {said}" for said, who in problems.items()]

    def judged(self) -> list[str]:
        """The verdict in sentences."""
        verdict, lines = self.verdict, []
        if verdict.tau is not None:
            lines.append(
                "Kendall's tau between the paper's order of the rows and ours: "
                f"{verdict.tau:+.2f}, the mean over the columns (1: the same order, 0: none). "
                f"{told_apart(verdict.apart, verdict.pairs)}"
            )
        if self.tuned:
            lines.append(f"Tuned for agreement, so no evidence for the paper's order: {self.tuned}")
        if verdict.compared:
            share = 100 * verdict.near / verdict.compared
            others = f"{verdict.unexplained} of the others are unexplained"
            if self.reduced and not verdict.unexplained:
                others = "at this scale no cell need be"
            lines.append(
                f"{verdict.near} of {verdict.compared} cells ({share:.0f} %) are within {NEAR:g} "
                f"points of the paper's number (costs: {NEAR:g} %); {others}."
            )
        return lines or ["No cell can be compared with the paper yet."]

    def explanations(self) -> dict[str, str]:
        """What the names in the column "Explained by" mean."""
        used = {name for one in self.verdicts.values() for _, why in one.far for name in why}
        known = KNOWN | {one.by: one.says for one in self.table.explain}
        return {name: said for name, said in known.items() if name in used}


def told_apart(apart: int, pairs: int) -> str:
    """A sentence on how much of the order our seeds tell."""
    return (
        f"The 95 % intervals of {apart} of {pairs} pairs of rows do not overlap; the other pairs "
        "are not told apart."
    )


def _scale(table: PaperTable, scale: str) -> str:
    if scale == "full":
        return "FULL SCALE: the paper's setting, as far as it is stated (see the presets)."
    kind = "far from" if scale == "small" else "nearer to, but not"
    return (
        f"{scale.upper()} SCALE: {kind} the paper's setting ({' '.join(table.changes(scale))}). "
        "The numbers are NOT comparable with the paper's; at most the order of the algorithms is."
    )


def footnotes(entries: Sequence[Entry]) -> list[str]:
    """Notes below a column's table, a line each."""
    ours = [entry for entry in entries if entry.scores is not None]
    if not ours:
        return []
    notes = grouped(
        {entry.line.title: entry.remarks for entry in ours if entry.line.client is None}
    )
    means = [entry for entry in ours if entry.line.client is None and entry.accuracy]
    if len({entry.clients for entry in means}) > 1:
        each = "; ".join(f"{entry.line.title}: {over(entry.clients)}" for entry in means)
        notes.append(f"Ours are means over different clients, which do not compare: {each}.")
    scale = (0.0, 100.0) if ours[0].accuracy else (-np.inf, np.inf)
    return notes + interval_notes((e.scores for e in ours if e.scores is not None), *scale)


def places(values: Sequence[float | None]) -> list[int | None]:
    """1 for the largest; equal ones share a place."""
    rounded = [None if value is None else ranked(value) for value in values]
    known = [value for value in rounded if value is not None]
    return [None if v is None else 1 + sum(other > v for other in known) for v in rounded]


def heading(section: Section) -> list[str]:
    return ["Algorithm", f"Paper {section.unit}", f"Ours {section.unit}", "Difference ± 95 %",
            "Place: paper", "ours", "Seeds", "Explained by"]  # fmt: skip


def column_table(section: Section, entries: Sequence[Entry], verdict: Verdict) -> Table:
    """The table of a column."""
    sign = 1 if section.column.measure.more else -1
    compared = [e.scores is not None and e.paper is not None for e in entries]
    if not any(e.paper is not None for e in entries):  # the paper has a picture alone
        compared = [e.scores is not None for e in entries]
    pairs = list(zip(entries, compared, strict=True))
    first = places([sign * e.paper if b and e.paper is not None else None for e, b in pairs])
    second = places([sign * e.ours if b and e.ours is not None else None for e, b in pairs])
    why = dict(verdict.far)

    def number(value: float | None, half: float | None, form=".2f", low=0.0, high=100.0) -> str:
        if value is None:
            return "-"
        ends = (low, high) if section.column.quantity == ACCURACY else (-np.inf, np.inf)
        width = "" if half is None else f" ± {half_width(value, half, *ends)}"
        return f"{value:{form}}{width}"

    def before(value: float | None) -> str:  # of a relative column
        return "" if value is None else f" ({value:g})"

    body = []
    for entry, mine, theirs in zip(entries, second, first, strict=True):
        difference = None if section.other_data else entry.difference
        own = None if entry.own is None else float(f"{entry.own:.3g}")
        body.append(
            [
                entry.line.title,
                number(entry.paper, entry.std, low=-np.inf, high=np.inf) + before(entry.printed),
                entry.state or number(entry.ours, entry.half) + before(own),
                number(difference, entry.half, "+.2f", -100.0),
                str(theirs or "-"),
                str(mine or "-"),
                "-" if entry.scores is None else str(len(entry.scores)),
                ", ".join(why.get(entry.line.name, ())),
            ]
        )
    return Table.of_cells(heading(section), body)


def measured(report: Report, section: Section) -> bool:
    """Whether a column has any number of ours; others have no table."""
    return any(entry.scores is not None for entry in report.entries[section.column.name])


def verdict_table(report: Report) -> Table:
    """The verdicts on the columns."""
    body = []
    for section in report.sections:
        if not measured(report, section):
            continue
        one = report.verdicts[section.column.name]
        tau = "-" if one.tau is None else f"{one.tau:+.2f}"
        body.append([section.column.title, tau, str(one.rows), f"{one.apart} of {one.pairs}",
                     f"{one.near} of {one.compared}", str(len(one.far) - one.unexplained),
                     str(one.unexplained)])  # fmt: skip
    head = ["Column", "Kendall's tau", "Rows", "Told apart", f"Within {NEAR:g}", "Explained",
            "Unexplained"]  # fmt: skip
    return Table.of_cells(head, body)


def markdown(report: Report, level: int = 1) -> str:
    """The page of a table; `level` is that of its title."""
    sharps = "#" * level
    parts = [f"{sharps} {report.title()}", *report.said(), *report.missing(report.sections)]
    parts += [f"{sharps}# Verdict", *report.judged(), verdict_table(report).to_markdown()]
    known = [f"- **{name}**: {said}." for name, said in report.explanations().items()]
    parts += ["\n".join(known)] if known else []
    for section in report.sections:
        name = section.column.name
        if not measured(report, section):
            continue  # the sentences above say why
        table = column_table(section, report.entries[name], report.verdicts[name]).to_markdown()
        parts += [f"{sharps}# {section.heading(report.scale)}", table]
        parts += footnotes(report.entries[name])
    return "\n\n".join(parts) + "\n"


def write(output: Path, report: Report) -> None:
    """Writes `table.md`, `table.csv` with a line for each cell, and `table.json`: the verdict."""
    write_text(output / "table.md", markdown(report))
    write_json(output / "table.json", summary(report))
    lines = []
    for section in report.sections:
        why = dict(report.verdicts[section.column.name].far)
        for entry in report.entries[section.column.name]:
            difference = None if section.other_data else entry.difference
            lines.append({
                "table": report.table.name,
                "scale": report.scale,
                "reading": report.reading,
                "column": section.column.name,
                "note": section.note,
                "row": entry.line.name,
                "algorithm": entry.line.algorithm,
                "state": entry.state or "measured",
                "unit": section.unit,
                "paper": entry.paper,
                "paper_std": entry.std,
                "ours": entry.ours,
                "difference": difference,
                "ci95_half_width": entry.half,
                "seeds": 0 if entry.scores is None else len(entry.scores),
                "within": None if difference is None else entry.near,
                "explained_by": "; ".join(why.get(entry.line.name, ())),
            })  # fmt: skip
    columns = [Column(key, key) for key in lines[0]] if lines else []
    write_text(output / "table.csv", Table(columns, lines).to_csv())


def summary(report: Report) -> dict[str, Any]:
    """The verdict as JSON values."""
    return {
        "table": report.table.name,
        "title": report.title(),
        "scale": report.scale,
        "reading": report.reading,
        "verdict": report.verdict.numbers(),
        "tuned_for_agreement": report.tuned,
        "columns": {name: one.numbers() for name, one in report.verdicts.items()},
        "further_off": [
            {"column": name, "row": row, "explained_by": list(why)}
            for name, one in report.verdicts.items()
            for row, why in one.far
        ],
        "explanations": {one.by: one.says for one in report.table.explain},
    }


def show(console: Console, report: Report, sections: Sequence[Section]) -> None:
    """Prints the requested columns; sentences at the end say which can't be run."""
    print("\n".join([report.title(), *report.said()]))
    for section in sections:
        if measured(report, section):
            name = section.column.name
            print(f"\n{section.heading(report.scale)}")
            entries = report.entries[name]
            print_table(console, column_table(section, entries, report.verdicts[name]))
            print("".join(f"\n{note}\n" for note in footnotes(entries)), end="")
    known = [f"{name}: {said}." for name, said in report.explanations().items()]
    print("\n" + "\n".join([*report.judged(), *known]))
    for sentence in report.missing(sections):
        print(f"\n{sentence}")
