"""The cells of a paper's table beside measured ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.results.intervals import interval

from ..figures.runs import Run, read
from ..figures.scores import chosen_clients, curve, one_number
from .paper_tables import Column, Line, PaperTable
from .quantities import ACCURACY

ABSENT, NO_DATA, NOT_RUN, NO_NUMBER = (
    "not in this version", "data missing", "not run", "not in the paper"
)  # fmt: skip
NEAR = 2.0  # points of accuracy, percent of a cost
ROUNDING = 1e-5  # of means of single-precision fractions, in points


@dataclass(frozen=True)
class Section:
    """A column of the table.

    Attributes:
      column: its description.
      folders: of each row's algorithm, finished or not.
      problem: why it can't be run, or None.
      note: words beside its title, or None.
      other_data: whether another data set is used, so that differences mean nothing.
      runs: digests of the identities of each row's run and score, where cells are kept.
      kept: cells of each row from a file of kept cells, see `kept`.
    """

    column: Column
    folders: dict[str, Path] = field(default_factory=dict)
    problem: str | None = None
    note: str | None = None
    other_data: bool = False
    runs: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.column.title} ({self.note})" if self.note else self.column.title

    @property
    def unit(self) -> str:
        """The unit of its numbers, in headings."""
        column = self.column
        return f"times {column.relative}" if column.relative else column.measure.unit

    def heading(self, scale: str) -> str:
        """The title, and this column's further changes at that scale."""
        also = " ".join(self.column.changes(scale))
        return f"{self.title}, {scale} by {also} too" if also else self.title


@dataclass(frozen=True)
class Entry:
    """One cell.

    Attributes:
      line: its row.
      paper, std: as printed (of a relative column: divided), None where there is none.
      scores: ours by seed in the column's unit, None where there is no run.
      state: why there is none, or "".
      clients: rows of the clients of our mean.
      remarks: our run's remarks.
      accuracy: whether it is one, or a cost.
      printed, own: of a relative column, the paper's number and ours before the division.
    """

    line: Line
    paper: float | None
    std: float | None
    scores: np.ndarray | None
    state: str
    clients: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()
    accuracy: bool = True
    printed: float | None = None
    own: float | None = None

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

    @property
    def near(self) -> bool | None:
        """Whether it is at most `NEAR` off: points of accuracy, percent of a cost."""
        off = self.difference
        if off is None or self.paper is None:
            return None
        limit = NEAR + ROUNDING if self.accuracy else NEAR * abs(self.paper) / 100 + 1e-9
        return bool(abs(off) <= limit)


def ranked(value: float) -> float:
    """A number for places: six digits, so that equal means of single-precision fractions tie."""
    return float(f"{value:.6g}")


def entries(table: PaperTable, section: Section) -> list[Entry]:
    """The cells of a column."""
    column, found = section.column, []
    for line in table.row:
        paper, std = table.paper_number(line, column)
        scores, state = None, ""
        origin: dict[str, Any] = {}
        folder = section.folders.get(line.name)
        if folder is not None and (folder / "summary.json").exists():
            scores, origin = measured(table, column, line, folder)
        elif (kept := section.kept.get(line.name)) is not None:
            numbers = kept["scores"].values()
            scores = np.array([float("nan" if one is None else one) for one in numbers])
            origin = {name: tuple(kept.get(name, ())) for name in ("clients", "remarks")}
        elif not line.registered:
            state = ABSENT
        elif not table.is_run(line, column):
            state = NO_NUMBER
        else:
            state = NO_DATA if section.problem else NOT_RUN
        accuracy = column.quantity == ACCURACY
        found.append(Entry(line, paper, std, scores, state, accuracy=accuracy, **origin))
    return divided(found, column.relative) if column.relative else found


def divided(found: list[Entry], by: str) -> list[Entry]:
    """Numbers as multiples of those of the row `by`."""
    (base,) = (entry for entry in found if entry.line.name == by)

    def ratio(number, unit: float | None):
        return None if number is None or not unit else number / unit

    return [
        replace(
            one, paper=ratio(one.paper, base.paper), std=None, scores=ratio(one.scores, base.ours),
            printed=one.paper, own=one.ours,
            state=one.state or ("" if base.ours else NOT_RUN),
        )
        for one in found
    ]  # fmt: skip


def measured(
    table: PaperTable, column: Column, line: Line, folder: Path
) -> tuple[np.ndarray, dict[str, Any]]:
    """(our number for each seed in the column's unit, the origin of an `Entry`).

    Accuracies are averaged as in the paper's table.
    """
    run = read(folder)
    remarks = run.remarks
    cost = column.measure.of
    if cost is not None:
        return column.times * cost(run), {"remarks": remarks}
    model, rows = line.model or column.model, clients(run, column, line)
    found = curve(run, rows, model, "test", column.average or table.average, table.over)
    return one_number(found, table.score), {"clients": tuple(rows.tolist()), "remarks": remarks}


def clients(run: Run, column: Column, line: Line) -> np.ndarray:
    """Rows of the clients whose mean is the number."""
    words = "" if line.client is None else str(line.client)
    (rows,) = chosen_clients([run], words, line.model or column.model, "test")
    return rows
