"""The cells of a paper's table beside measured ones, one data frame for each column."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl.results.intervals import interval

from ..figures.loading import read
from ..figures.runs import Run
from ..figures.scores import chosen_clients, curve, one_number
from .paper_tables import Column, Line, PaperTable
from .quantities import ACCURACY

ABSENT, NO_DATA, NOT_RUN, NO_NUMBER, MEASURED = (
    "not in this version", "data missing", "not run", "not in the paper", "measured"
)  # fmt: skip
NEAR = 2.0  # points of accuracy, percent of a cost
ROUNDING = 1e-5  # of means of single-precision fractions, in points
Cells = Any  # a data frame: stubs know nothing of its columns
SCALE, DATA, UNEXPLAINED, DIVERGED = "scale", "other data", "unexplained", "diverged"


@dataclass(frozen=True)
class ColumnRuns:
    """A column of the table.

    Attributes:
      column: its description.
      folders: of each row's algorithm, finished or not.
      problem: why it can't be run, or None.
      note: words beside its title, or None.
      other_data: whether another data set is used, so that differences mean nothing.
      runs: digests of the identities of each row's run and score, where cells are saved.
      saved: saved cells by row, see `saved_cells`.
    """

    column: Column
    folders: dict[str, Path] = field(default_factory=dict)
    problem: str | None = None
    note: str | None = None
    other_data: bool = False
    runs: Mapping[str, str] = field(default_factory=dict)
    saved: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.column.title} ({self.note})" if self.note else self.column.title

    @property
    def unit(self) -> str:
        """The unit of its numbers, in headings."""
        column = self.column
        return f"times {column.relative}" if column.relative else column.measure.unit

    def heading(self, scale: str) -> str:
        """Return the title, and this column's further changes at that scale."""
        also = " ".join(self.column.changes(scale))
        return f"{self.title}, {scale} scale also with {also}" if also else self.title


def cells_of(table: PaperTable, scale: str, section: ColumnRuns) -> Cells:
    """Return the cells of a column, see `compared`."""
    return compared([_cell(table, section, line) for line in table.row], table, scale, section)


def _cell(table: PaperTable, section: ColumnRuns, line: Line) -> dict[str, Any]:
    paper, std = table.paper_number(line, section.column)
    cell = {"line": line, "state": MEASURED, "paper": paper, "paper_std": std, "scores": None}
    folder = section.folders.get(line.name)
    if folder is not None and (folder / "summary.json").exists():
        return cell | measured(table, section.column, line, folder)
    if (saved := section.saved.get(line.name)) is not None:
        scores = np.array([np.nan if one is None else one for one in saved["scores"].values()])
        origin = {name: tuple(saved.get(name, ())) for name in ("clients", "remarks")}
        return cell | {"scores": scores} | origin
    if not line.registered:
        return cell | {"state": ABSENT}
    if not table.has_run(line, section.column):
        return cell | {"state": NO_NUMBER}
    return cell | {"state": NO_DATA if section.problem else NOT_RUN}


def measured(table: PaperTable, column: Column, line: Line, folder: Path) -> dict[str, Any]:
    """Return "scores" by seed in the column's unit, the averaged "clients", and "remarks".

    Accuracies are averaged as in the paper's table.
    """
    run = read(folder)
    if column.measure.of is not None:
        scores, clients = column.times * column.measure.of(run), ()
    else:
        model, rows = line.model or column.model, clients_of(run, column, line)
        average = column.average or table.average
        values = curve(run, rows, model, "test", average, table.over_of(line))
        scores, clients = one_number(values, table.score), tuple(rows.tolist())
    return {"scores": scores, "clients": clients, "remarks": run.remarks}


def clients_of(run: Run, column: Column, line: Line) -> np.ndarray:
    """Return the rows of the clients that a cell averages."""
    words = "" if line.client is None else str(line.client)
    (rows,) = chosen_clients([run], words, line.model or column.model, "test")
    return rows


def compared(
    cells: list[dict[str, Any]], table: PaperTable, scale: str, section: ColumnRuns
) -> Cells:
    """Return the cells with our means beside the paper's numbers.

    Args:
      cells: "line", "state", "paper", "paper_std" (None where there is none), "scores" (by seed, or
        None), and perhaps "clients" and "remarks" of our run.

    Returns:
      One row for each cell, with the same and: `single`, whether it is of a single client; `ours`,
      the mean of the scores; `ci95_half_width` of our number, and so of the difference; `seeds`;
      `difference`, missing on another data set; `within`, whether it is at most `NEAR`;
      `explained_by`, names of what explains a larger one. In a relative column numbers are divided
      by those of its base row, and `printed` and `own` are those before the division.
    """
    column = section.column
    frame: Cells = pd.DataFrame([{"clients": (), "remarks": ()} | cell for cell in cells])
    frame["row"] = [line.name for line in frame["line"]]
    frame["single"] = [line.client is not None for line in frame["line"]]
    numbers = ["paper", "paper_std"]
    frame[numbers] = frame[numbers].astype(float)
    frame["printed"] = frame["own"] = np.nan
    frame["ours"] = [np.nan if one is None else one.mean() for one in frame["scores"]]
    if column.relative:
        frame["printed"], frame["own"] = frame["paper"], frame["ours"]
        (base,) = frame.loc[frame["row"] == column.relative].to_dict("records")
        unit = base["ours"] or np.nan
        frame["paper"] /= base["paper"] or np.nan
        frame["paper_std"] = np.nan
        frame["scores"] = [
            None if one is None or np.isnan(unit) else one / unit for one in frame["scores"]
        ]
        frame["ours"] = [np.nan if one is None else one.mean() for one in frame["scores"]]
        if np.isnan(unit):
            frame.loc[frame["state"] == MEASURED, "state"] = NOT_RUN
    halves = [None if one is None else interval(one) for one in frame["scores"]]
    frame["ci95_half_width"] = pd.Series(halves, dtype=float)
    frame["seeds"] = [0 if one is None else len(one) for one in frame["scores"]]
    frame["difference"] = np.nan if section.other_data else frame["ours"] - frame["paper"]
    near = NEAR * frame["paper"].abs() / 100 + 1e-9
    near = NEAR + ROUNDING if column.quantity == ACCURACY else near
    frame["within"] = frame["difference"].abs() <= near
    frame["explained_by"] = [
        () if cell["within"] or np.isnan(cell["difference"]) else why(table, scale, section, cell)
        for cell in frame.to_dict("records")
    ]
    return frame


def why(
    table: PaperTable, scale: str, section: ColumnRuns, cell: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the names of explanations of a cell's difference."""
    names = [DIVERGED] if any("non-finite" in remark for remark in cell["remarks"]) else []
    names += [SCALE] if scale != "full" and section.column.measure.scaled else []
    where = "below" if cell["difference"] < 0 else "above"
    names += table.explanations(cell["line"], section.column, where)
    return tuple(names) or (UNEXPLAINED,)


def rounded_for_ties(value: float) -> float:
    """Round a number to six digits, so that equal means in single precision tie."""
    return float(f"{value:.6g}")


def verdict(cells: Cells, column: Column) -> dict[str, Any]:
    """Return how a column agrees with the paper's.

    Rows of single clients have no place in the order: which classes a client has is drawn anew.

    Returns:
      `kendall_tau`: tau-b between the paper's order of the rows and ours, None with fewer than two
      rows or where all are tied; `rows`: how many it compares; `apart`, `pairs`: pairs of those
      rows whose 95 % intervals over our seeds do not overlap (our runs don't tell the order of the
      others), and all pairs; `within`, `compared`: cells at most `NEAR` off, and all with a
      difference; `unexplained`: cells further off that nothing explains.
    """
    order = cells[~cells["single"]].dropna(subset=["paper", "ours"])
    # Of one seed: a count has no spread.
    halves = order["ci95_half_width"].fillna(0.0 if column.measure.blank else np.inf)
    apart, pairs = separated_pairs(order["ours"], halves)
    return {
        "kendall_tau": kendall(order["paper"], order["ours"]),
        "rows": len(order),
        "apart": apart,
        "pairs": pairs,
        "within": int(cells["within"].sum()),
        "compared": int(cells["difference"].notna().sum()),
        "unexplained": sum(UNEXPLAINED in names for names in cells["explained_by"]),
    }


def kendall(paper: pd.Series, ours: pd.Series) -> float | None:
    """Return Tau-b of two lists of numbers; None where it isn't defined."""
    if len(paper) < 2:
        return None
    tau = float(paper.map(rounded_for_ties).corr(ours.map(rounded_for_ties), method="kendall"))
    return None if np.isnan(tau) else tau


def separated_pairs(means: pd.Series, halves: pd.Series) -> tuple[int, int]:
    """Return (pairs whose intervals do not overlap, all pairs) of means with half intervals."""
    pairs = list(itertools.combinations(zip(means, halves, strict=True), 2))
    return sum(abs(a - b) > wide + width for (a, wide), (b, width) in pairs), len(pairs)


def verdict_of_table(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the verdict on all columns: the mean of their taus, and the sums of their cells."""
    ordered = [one for one in columns if one["kendall_tau"] is not None]
    taus = [one["kendall_tau"] for one in ordered]
    totals = {name: sum(one[name] for one in ordered) for name in ("rows", "apart", "pairs")}
    totals |= {n: sum(one[n] for one in columns) for n in ("within", "compared", "unexplained")}
    return {"kendall_tau": float(np.mean(taus)) if taus else None, **totals}
