"""A paper's table beside measured numbers: sections, Markdown, CSV, and the terminal."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from rich.console import Console

from fedjax_pfl.results import tables
from fedjax_pfl.results.remarks import grouped, over
from fedjax_pfl.results.tables import beyond, half_width, interval, interval_note

from ..cli.console import print_cells
from ..figures.runs import read
from ..figures.scores import SCORES, chosen_clients, curve, one_number
from ..outputs.run_files import aside, write_text
from .tables import Column, Line, PaperTable

HEADING = ("Algorithm", "Paper %", "Ours %", "Difference ± 95 %", "Place: paper", "ours", "Seeds")
ABSENT, NO_DATA, NOT_RUN, NO_NUMBER = (
    "not in this version", "data missing", "not run", "not in the paper"
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A column of the table.

    Attributes:
      column: its description.
      folders: of each row's algorithm, finished or not.
      problem: why it can't be run, or None.
      note: words beside its title, or None.
      other_data: whether another data set is used, so that differences mean nothing.
    """

    column: Column
    folders: dict[str, Path] = field(default_factory=dict)
    problem: str | None = None
    note: str | None = None
    other_data: bool = False

    @property
    def title(self) -> str:
        return f"{self.column.title} ({self.note})" if self.note else self.column.title

    def heading(self, scale: str) -> str:
        """The title, and this column's further changes for small runs."""
        also = " ".join(self.column.small) if scale == "small" else ""
        return f"{self.title}, small by {also} too" if also else self.title


@dataclass(frozen=True)
class Entry:
    """One cell.

    Attributes:
      line: its row.
      paper, std: as printed, None where there is none.
      scores: ours in percent by seed, None where there is no run.
      state: why there is none, or "".
      clients: rows of the clients of our mean.
      remarks: our run's remarks.
    """

    line: Line
    paper: float | None
    std: float | None
    scores: np.ndarray | None
    state: str
    clients: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ours(self) -> float | None:
        return None if self.scores is None else float(self.scores.mean())

    @property
    def half(self) -> float | None:
        """Half of the 95 % interval over seeds: of our number, and so of the difference."""
        return None if self.scores is None else interval(self.scores)

    @property
    def difference(self) -> float | None:
        ours = self.ours
        return None if ours is None or self.paper is None else ours - self.paper


@dataclass(frozen=True)
class Report:
    """Everything written and shown for a table."""

    table: PaperTable
    scale: str
    more: tuple[str, ...]
    sections: tuple[Section, ...]

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """Of every column, by its name."""
        return {one.column.name: self._entries(one) for one in self.sections}

    def _entries(self, section: Section) -> list[Entry]:
        found = []
        for line in self.table.row:
            paper, std = self.table.paper_number(line, section.column)
            scores, state, more = None, "", {}
            folder = section.folders.get(line.name)
            if folder is not None and (folder / "summary.json").exists():
                scores = measured(self.table, section.column, folder)
                more = origin(section.column, folder)
            elif not line.registered:
                state = ABSENT
            elif paper is None:
                state = NO_NUMBER
            else:
                state = NO_DATA if section.problem else NOT_RUN
            found.append(Entry(line, paper, std, scores, state, **more))
        return found

    def title(self) -> str:
        return f"{self.table.paper}, {self.table.table}: {self.table.caption}"

    def said(self) -> list[str]:
        """The meaning of the numbers, in sentences."""
        table = self.table
        lines = [
            f"Accuracy in percent on the clients' own test samples, {SCORES[table.score]}, mean "
            f"over {table.average} unless a title says otherwise. ± 95 %: half of Student's "
            "interval over the seeds. Place: among the algorithms measured here."
        ]
        if self.scale == "small":
            lines.append(
                f"SMALL SCALE: far from the paper's setting ({' '.join(table.small)}). The numbers "
                "are NOT comparable with the paper's; at most the order of the algorithms is."
            )
        else:
            lines.append(
                "FULL SCALE: the paper's setting, as far as it is stated (see the presets)."
            )
        places = ("--data_dir", "--output_dir", "--compilation_cache", "--checkpoint_seconds")
        more = [word for word in self.more if not word.startswith(places)]
        if more:
            lines.append(f"Changed on the command line: {' '.join(more)}.")
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


def measured(table: PaperTable, column: Column, folder: Path) -> np.ndarray:
    """Our number for each seed, in percent, averaged as in the paper's table."""
    run = read(folder)
    (rows,) = chosen_clients([run], "", column.model, "test")
    average = column.average or table.average
    return one_number(curve(run, rows, column.model, "test", average), table.score)


def origin(column: Column, folder: Path) -> dict[str, tuple]:
    """Fields of an `Entry`: the clients of our mean, and the run's remarks."""
    run = read(folder)
    (rows,) = chosen_clients([run], "", column.model, "test")
    return {"clients": tuple(rows.tolist()), "remarks": tuple(run.summary.get("remarks", ()))}


def footnotes(entries: Sequence[Entry]) -> list[str]:
    """Notes below a column's table, a line each."""
    ours = [entry for entry in entries if entry.scores is not None]
    if not ours:
        return []
    notes = grouped({entry.line.title: entry.remarks for entry in ours})
    if len({entry.clients for entry in ours}) > 1:
        each = "; ".join(f"{entry.line.title}: {over(entry.clients)}" for entry in ours)
        notes.append(f"Ours are means over different clients, which do not compare: {each}.")
    scores = [entry.scores for entry in ours if entry.scores is not None]
    marked = any(beyond(float(each.mean()), interval(each)) for each in scores)
    note = interval_note(min(map(len, scores)), marked)
    return [*notes, *([] if note is None else [note])]


def places(values: Sequence[float | None]) -> list[int | None]:
    """1 for the largest; equal ones share a place."""
    known = [value for value in values if value is not None]
    return [None if v is None else 1 + sum(other > v for other in known) for v in values]


def cells(section: Section, entries: Sequence[Entry]) -> list[list[str]]:
    """Heading and rows of strings."""
    both = [e.scores is not None and e.paper is not None for e in entries]
    first = places([e.paper if b else None for e, b in zip(entries, both, strict=True)])
    second = places([e.ours if b else None for e, b in zip(entries, both, strict=True)])

    def number(value: float | None, half: float | None, form=".2f", low=0.0, high=100.0) -> str:
        if value is None:
            return "-"
        width = "" if half is None else f" ± {half_width(value, half, low, high)}"
        return f"{value:{form}}{width}"

    body = []
    for entry, mine, theirs in zip(entries, second, first, strict=True):
        difference = None if section.other_data else entry.difference
        body.append(
            [
                entry.line.title,
                number(entry.paper, entry.std, low=-np.inf, high=np.inf),
                entry.state or number(entry.ours, entry.half),
                number(difference, entry.half, "+.2f", -100.0),
                str(theirs or "-"),
                str(mine or "-"),
                "-" if entry.scores is None else str(len(entry.scores)),
            ]
        )
    return [list(HEADING), *body]


def markdown(report: Report) -> str:
    parts = [f"# {report.title()}", *report.said(), *report.missing(report.sections)]
    for section in report.sections:
        table = cells(section, report.entries[section.column.name])
        parts.append(f"## {section.heading(report.scale)}\n\n{tables.markdown(table)}")
        parts += footnotes(report.entries[section.column.name])
    return "\n\n".join(parts) + "\n"


def write(output: Path, report: Report) -> None:
    """Writes `table.md`, and `table.csv` with a line for each cell."""
    write_text(output / "table.md", markdown(report))
    with aside(output / "table.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("table", "scale", "column", "note", "row", "algorithm", "state", "paper_percent",
             "paper_std", "ours_percent", "difference", "ci95_half_width", "seeds")
        )  # fmt: skip
        for section in report.sections:
            for entry in report.entries[section.column.name]:
                difference = None if section.other_data else entry.difference
                numbers = (entry.paper, entry.std, entry.ours, difference, entry.half)
                line = [report.table.name, report.scale, section.column.name, section.note or ""]
                line += [entry.line.name, entry.line.algorithm, entry.state or "measured"]
                line += ["" if number is None else number for number in numbers]
                writer.writerow([*line, 0 if entry.scores is None else len(entry.scores)])


def show(console: Console, report: Report, sections: Sequence[Section]) -> None:
    """Prints the requested columns; sentences at the end say which can't be run."""
    print("\n".join([report.title(), *report.said()]))
    for section in sections:
        if not section.problem:
            print(f"\n{section.heading(report.scale)}")
            entries = report.entries[section.column.name]
            print_cells(console, cells(section, entries))
            print("".join(f"\n{note}\n" for note in footnotes(entries)), end="")
    for sentence in report.missing(sections):
        print(f"\n{sentence}")
