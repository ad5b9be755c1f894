"""The table that a paper prints: algorithms by data sets, or by the values of any setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedjax_pfl.results.intervals import interval, interval_notes, mean_with_interval
from fedjax_pfl.results.notes import grouped
from fedjax_pfl.results.table import BOLD, UNDERLINED, Table
from fedjax_pfl.utils.errors import InputError, require_name
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

from .choice import Choice
from .run_table import write_tables
from .runs import ALGORITHM, REVISION, Run, same_data
from .scores import chosen_clients, curve, one_number, who
from .selection import REPEATS, apart, mixed_code, renamed, setting, shown, varying, with_scores

SPREADS = ("std", "interval")
RANKED = "Of each column the best mean is bold, the second underlined."


@dataclass(frozen=True)
class Cell:
    """The scores of one row in one column by seed; fractions, such as accuracies, in percent."""

    scores: Mapping[int, float]

    @property
    def values(self) -> np.ndarray:
        return np.array(list(self.scores.values()))

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    def spread(self, kind: str) -> float | None:
        """Deviation over seeds, or half the width of its 95 % interval; None for one seed."""
        if kind == "interval":
            return interval(self.values)
        return float(self.values.std(ddof=1)) if len(self.scores) > 1 else None

    def text(self, kind: str, measure: Measure) -> str:
        if kind == "interval":
            return mean_with_interval(self.values, measure)
        deviation = self.spread(kind)
        more = "" if deviation is None else f" ± {measure.shown(deviation)}"
        return measure.shown(self.mean) + more


@dataclass(frozen=True)
class Pivot:
    """A table of rows by the values of a setting.

    Attributes:
      name: the setting whose values are the columns.
      rows, columns: their labels, in the order of the runs.
      cells: by (row, column).
      spread: "std" or "interval".
      notes: below the table, a line each.
      over: the clients of the means, in words.
      measure: of the cells.
    """

    name: str
    rows: list[str]
    columns: list[str]
    cells: dict[tuple[str, str], Cell]
    spread: str
    notes: list[str]
    over: str
    measure: Measure = ACCURACY

    def places(self, column: str) -> dict[str, int]:
        """The best rows of a column (0) and the second best (1), by means as they are printed."""
        cells = {r: self.cells[r, column] for r in self.rows if (r, column) in self.cells}
        means = {row: float(self.measure.shown(cell.mean)) for row, cell in cells.items()}
        order = sorted(set(means.values()), reverse=self.measure.higher)[:2]
        if len(means) < 2:
            return {}
        return {row: order.index(mean) for row, mean in means.items() if mean in order}

    def table(self) -> Table:
        """The best cell of each column in bold, the second best underlined."""
        body = [
            [cell and cell.text(self.spread, self.measure)
             for cell in (self.cells.get((row, column)) for column in self.columns)]
            for row in self.rows
        ]  # fmt: skip
        made = Table.of_cells(
            ["", *self.columns],
            [[name, *line] for name, line in zip(self.rows, body, strict=True)],
        )
        emphasis = {
            (self.rows.index(row), str(k)): (BOLD, UNDERLINED)[place]
            for k, column in enumerate(self.columns, start=1)
            for row, place in self.places(column).items()
        }
        return replace(made, notes=self.notes, emphasis=emphasis)

    def write(self, folder: Path, text: str) -> None:
        """Writes the table; a line for each cell in `table.csv`, for each score in `seeds.csv`."""
        end = "_percent" if self.measure.fraction else ""
        heading = ("row", self.name, "seeds", f"mean{end}", f"{self.spread}{end}")
        numbers = [
            (*at, len(cell.scores), cell.mean, cell.spread(self.spread))
            for at, cell in self.cells.items()
        ]
        seeds = [
            (*at, seed, value) for at, cell in self.cells.items()
            for seed, value in cell.scores.items()
        ]  # fmt: skip
        made = self.table()
        write_tables(
            folder, text, made, made.to_latex("c"), Table.of_cells(heading, numbers),
            [("row", self.name, "seed", self.measure.column), *seeds],
        )  # fmt: skip


def pivoted(
    runs: Sequence[Run],
    name: str,
    choice: Choice = Choice(),  # noqa: B008 - immutable
    *,
    spread: str = "std",
) -> Pivot:
    """Algorithms (and the settings in which their runs differ) by the values of a setting.

    Runs that differ in their seeds alone are one cell. A setting that goes with the column, such as
    the network of a data set, is no difference.

    Args:
      name: "dataset", or any other setting.
      choice: which scores.
      spread: "std" over seeds, or "interval", half the width of its 95 % interval.

    Raises:
      InputError: an unknown name, a cell with two runs of the same seed, or different data.
    """
    require_name("--spread", spread, SPREADS)
    model, split, average = choice.model, choice.split, choice.average
    runs = setting(with_scores(runs, [model], split), name)
    chosen = chosen_clients(runs, choice.clients, model, split)
    at = [shown(run.settings[name]) for run in runs]
    columns = list(dict.fromkeys(at))
    for column in columns:
        first, *others = (run for run, where in zip(runs, at, strict=True) if where == column)
        other = next((run for run in others if not same_data(run, first)), None)
        if other is not None and not choice.different_data:
            raise InputError(
                f"{first.folder} and {other.folder} both have {name} {column}, but not the same "
                f"data: {first.data_name} and {other.data_name}; --different_data allows it."
            )
    differ = _apart(runs, at, name)

    def row_of(run: Run) -> str:
        own = [n for n in differ if n in run.settings]
        words = [f"{n.partition('.')[2] or n}={shown(run.settings[n])}" for n in own]
        return ", ".join([run.algorithm, *words])

    cells: dict[tuple[str, str], dict[int, float]] = {}
    pooled: dict[tuple[str, str], list[Run]] = {}
    remarks: dict[str, list[str]] = {}
    for run, column, mine in zip(runs, at, chosen, strict=True):
        values = one_number(curve(run, mine, model, split, average), choice.score, run.measure)
        place = renamed(row_of(run)), renamed(column)
        cell, same = cells.setdefault(place, {}), pooled.setdefault(place, [])
        same.append(run)
        if len(same) > 1 and REVISION in apart(same) and name != REVISION:
            raise InputError(
                f"{same[0].folder} and {run.folder} are both {row_of(run)} with {name} {column}, "
                "but one has no recorded revision, or another one: leave one of them out."
            )
        for seed, value in zip(run.seeds, values.tolist(), strict=True):
            if seed in cell:
                raise InputError(
                    f"{run.folder} is {row_of(run)} with {name} {column} and seed {seed}, which "
                    "another run is, too: leave one of them out."
                )
            cell[seed] = value
        sentences = remarks.setdefault(renamed(row_of(run)), [])
        sentences += [one for one in run.remarks if one not in sentences]
    rows = list(dict.fromkeys(row for row, _ in cells))
    made = {where: Cell(scores) for where, scores in cells.items()}
    several = [cell for cell in made.values() if len(cell.scores) > 1]
    notes = [RANKED, *grouped(remarks), *mixed_code(pooled.values())]
    counts = sorted({len(cell.scores) for cell in made.values()})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = {"std": "deviation", "interval": "half of the 95 % interval"}[spread]
    if several:
        notes.insert(0, f"±: {what} over seeds, {seeds} of them.")
    if spread == "interval":
        notes += interval_notes([cell.values for cell in several], *runs[0].measure.range)
    over = who(runs, chosen, average)
    labels = [renamed(column) for column in columns]
    return Pivot(name, rows, labels, made, spread, notes, over, runs[0].measure)


def _apart(runs: Sequence[Run], at: Sequence[str], name: str) -> list[str]:
    """Settings in which runs of one algorithm differ within a column."""
    result = []
    for one in varying(runs, (name, ALGORITHM, *REPEATS)):
        seen: dict[tuple[str, str], set[str]] = {}
        for run, column in zip(runs, at, strict=True):
            if one in run.settings:
                seen.setdefault((run.algorithm, column), set()).add(repr(run.settings[one]))
        if any(len(values) > 1 for values in seen.values()):
            result.append(one)
    return result
