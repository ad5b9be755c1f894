"""The table that a paper prints: algorithms by data sets, or by the values of any setting."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedjax_pfl.data.whole_files import aside, writing
from fedjax_pfl.results.notes import grouped
from fedjax_pfl.results.result_table import beyond, half_width, interval, interval_note, markdown
from fedjax_pfl.utils.errors import InputError, require_name
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

from ..outputs.run_files import write_text
from .choice import Choice
from .run_table import escaped
from .runs import ALGORITHM, REVISION, Run, same_data
from .scores import chosen_clients, curve, one_number, who
from .selection import REPEATS, apart, mixed_code, renamed, setting, shown, varying, with_scores

SPREADS = ("std", "interval")
RANKED = "Of each column the best mean is bold, the second underlined."


@dataclass(frozen=True)
class Cell:
    """The scores of one row in one column, accuracies in percent, by seed."""

    scores: Mapping[int, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.scores.values())))

    def spread(self, kind: str) -> float | None:
        """Deviation over seeds, or half the width of its 95 % interval; None for one seed."""
        values = np.array(list(self.scores.values()))
        if kind == "interval":
            return interval(values)
        return float(values.std(ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Pivot:
    """Rows by columns.

    Attributes:
      name: the setting whose values are the columns.
      rows, columns: their labels, in the order of the runs.
      cells: by (row, column).
      spread: "std" or "interval".
      notes: below the table, a line each.
      over: the clients of the means, in words.
      measure: what the cells have.
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

    def text(self, row: str, column: str) -> str:
        cell = self.cells.get((row, column))
        if cell is None:
            return "-"
        half = cell.spread(self.spread)
        if half is None:
            return self.measure.shown(cell.mean)
        written = self.measure.shown(half)
        if self.spread == "interval":
            written = half_width(cell.mean, half, measure=self.measure)
        return f"{self.measure.shown(cell.mean)} ± {written}"

    def lines(self, marks: Sequence[str]) -> list[list[str]]:
        """Heading and rows of strings; `marks` are formats for the best and the second."""
        places = {column: self.places(column) for column in self.columns}

        def marked(row: str, column: str) -> str:
            text, place = self.text(row, column), places[column].get(row)
            return text if place is None else marks[place].format(text)

        body = [[row, *(marked(row, column) for column in self.columns)] for row in self.rows]
        return [["", *self.columns], *body]

    def markdown(self) -> str:
        lines = self.lines(("\0{}\0", "<u>{}</u>"))  # a * that marks an interval is none of bold's
        return markdown(lines).replace("*", r"\*").replace("\0", "**") + "\n"

    def latex(self) -> str:
        """A tabular for the package booktabs."""
        heading, *body = self.lines(("\0{}\2", "\1{}\2"))
        braces = {"\0": r"\textbf{", "\1": r"\underline{", "\2": "}"}

        def written(text: str) -> str:
            return "".join(braces.get(c, c) for c in escaped(text))

        lines = [rf"\begin{{tabular}}{{l{'c' * len(self.columns)}}}", r"\toprule"]
        lines += [" & ".join(map(written, heading)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(written, line)) + r" \\" for line in body]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def write(self, folder: Path, said: str) -> None:
        """Writes `table.md`, `table.tex`, `table.csv` (a line for each cell) and `seeds.csv`."""
        with writing(folder):
            folder.mkdir(parents=True)
        text = [said, self.markdown().rstrip(), *self.notes]
        write_text(folder / "table.md", "\n\n".join(text) + "\n")
        comments = "".join(f"% {line}\n" for line in (said, *self.notes))
        write_text(folder / "table.tex", comments + self.latex())
        names = ("row", self.name)
        with aside(folder / "table.csv") as part, part.open("w", newline="") as file:
            lines = csv.writer(file)
            end = "_percent" if self.measure.fraction else ""
            lines.writerow((*names, "seeds", f"mean{end}", f"{self.spread}{end}"))
            for at, cell in self.cells.items():
                spread = cell.spread(self.spread)
                lines.writerow((*at, len(cell.scores), cell.mean, "" if spread is None else spread))
        with aside(folder / "seeds.csv") as part, part.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow((*names, "seed", self.measure.column))
            for at, cell in self.cells.items():
                lines.writerows((*at, seed, value) for seed, value in cell.scores.items())


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
        said = remarks.setdefault(renamed(row_of(run)), [])
        said += [one for one in run.summary.get("remarks", ()) if one not in said]
    rows = list(dict.fromkeys(row for row, _ in cells))
    made = {where: Cell(scores) for where, scores in cells.items()}
    several = [cell for cell in made.values() if len(cell.scores) > 1]
    notes = [RANKED, *grouped(remarks), *mixed_code(pooled.values())]
    counts = sorted({len(cell.scores) for cell in made.values()})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = {"std": "deviation", "interval": "half of the 95 % interval"}[spread]
    if several:
        notes.insert(0, f"±: {what} over seeds, {seeds} of them.")
    if several and spread == "interval":
        ends = runs[0].measure.range
        marked = any(beyond(cell.mean, cell.spread(spread), *ends) for cell in several)
        note = interval_note(min(len(cell.scores) for cell in several), marked)
        notes += [] if note is None else [note]
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
