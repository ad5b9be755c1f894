"""Pivot tables of finished runs: algorithms by data sets, or by the values of any setting."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl.results.intervals import interval, interval_notes, mean_with_interval
from fedjax_pfl.results.notes import grouped_by_column
from fedjax_pfl.results.significance import Ranking
from fedjax_pfl.results.table import BOLD, UNDERLINED, Table
from fedjax_pfl.utils.errors import InputError, require, require_name
from fedjax_pfl.utils.metric_names import ACCURACY, NEITHER, Measure

from .drawing import extent, split_at_commas
from .runs import ALGORITHM, REVISION, Run, same_data
from .scores import Choice, chosen_clients, curve, describe_clients, one_number
from .selection import (
    DATASET,
    REPEATS,
    differing_settings,
    mixed_code,
    named_settings,
    renamed,
    require_different_labels,
    shown,
    varying,
    with_scores,
    with_setting,
)

SPREADS = ("std", "interval")
NETWORK = ("model", "model_option")
RANKED = "Of each column the best mean is bold, the second underlined."


def _spread(values: np.ndarray, kind: str) -> float | None:
    """Return the deviation over seeds, or half the 95 % interval; None for one seed."""
    if kind == "interval":
        return interval(values)
    return float(values.std(ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Pivot:
    """A table of rows by the values of a setting.

    Attributes:
      scores: by "row", column (the name of the setting), "seed", and the measure; fractions, such
        as accuracies, in percent.
      spread: "std" or "interval".
      notes: below the table, a line each.
      over: the clients of the means, in words.
      measure: of the cells.
      data: the data set of each column, where they are known.
      axes: rows and columns of the table; by default those that have a score.
      hidden: settings in which columns differ and which no name of a row or column shows.
    """

    scores: pd.DataFrame
    spread: str
    notes: list[str]
    over: str
    measure: Measure = ACCURACY
    data: Mapping[str, str] = field(default_factory=dict)
    axes: tuple[Sequence[str], Sequence[str]] | None = None
    hidden: Sequence[str] = ()

    @cached_property
    def cells(self) -> dict[tuple[str, str], np.ndarray]:
        """Return the scores of each (row, column) by seed, in the order of the runs."""
        *place, _, value = self.scores.columns
        groups: Any = self.scores.groupby(place, sort=False)[value]
        return {at: values.to_numpy() for at, values in groups}

    def text(self, values: np.ndarray) -> str:
        """Format a cell."""
        if self.spread == "interval":
            return mean_with_interval(values, self.measure)
        deviation = _spread(values, self.spread)
        more = "" if deviation is None else f" ± {self.measure.shown(deviation)}"
        return self.measure.shown(float(values.mean())) + more

    def emphasis(self, column: str) -> dict[str, str]:
        """Return the emphasis of a column: best rows bold, second best underlined."""
        cells = {row: values for (row, other), values in self.cells.items() if other == column}
        known = {row: mean for row, one in cells.items() if np.isfinite(mean := float(one.mean()))}
        means = {row: float(self.measure.shown(mean)) for row, mean in known.items()}
        order = sorted(set(means.values()), reverse=self.measure.higher)[:2]
        if len(means) < 2 or self.measure.better == NEITHER:
            return {}
        forms = dict(zip(order, (BOLD, UNDERLINED), strict=False))
        return {row: forms[mean] for row, mean in means.items() if mean in forms}

    def table(self) -> Table:
        """Return the table, with each column's best cell bold and second best underlined."""
        known = (self.scores.iloc[:, axis].unique().tolist() for axis in (0, 1))
        rows, columns = self.axes or known
        texts = {at: self.text(values) for at, values in self.cells.items()}
        body = [[row, *(texts.get((row, column)) for column in columns)] for row in rows]
        emphasis = {
            (rows.index(row), str(k)): form
            for k, column in enumerate(columns, start=1)
            for row, form in self.emphasis(column).items()
        }
        made = Table.of_cells(["", *columns], body)
        return replace(made, notes=self.notes, emphasis=emphasis)

    def ranking(self) -> tuple[Ranking, list[str]]:
        """Return the ranking of the rows with columns as blocks, and notes on what is left out.

        Raises:
          InputError: too few columns that all rows have.
        """
        rows, columns = (self.scores.iloc[:, axis].unique().tolist() for axis in (0, 1))
        means = {at: float(values.mean()) for at, values in self.cells.items()}
        whole = [c for c in columns if not any(np.isnan(means.get((r, c), np.nan)) for r in rows)]
        scores = np.array([[means[row, one] for row in rows] for one in whole])
        scores, finite = scores.reshape(len(whole), len(rows)), np.isfinite(scores)
        size = np.max(np.abs(scores), axis=1, keepdims=True, initial=0, where=finite)
        last = (-1 if self.measure.higher else 1) * (1 + 2 * size)  # of a row that diverged
        made = Ranking(rows, whole, np.where(finite, scores, last), self.measure)
        left = [one for one in columns if one not in whole]
        notes = [f"Left out, as not all rows have them: {', '.join(left)}."] if left else []
        lost = [f"{rows[k]} ({whole[i]})" for i, k in zip(*np.nonzero(~finite), strict=True)]
        notes += [f"Ranked last, as their scores are infinite: {', '.join(lost)}."] if lost else []
        absent = [one for one in self.axes[0] if one not in rows] if self.axes else []
        notes += [f"Left out, as they have no score: {', '.join(absent)}."] if absent else []
        if len({self.data.get(one, one) for one in whole}) < len(whole):
            notes.append(
                "Some blocks share a data set and are not independent: p-values are too small."
            )
        return made, notes

    def numbers(self) -> pd.DataFrame:
        """Return a line for each cell: its seeds, mean and spread."""
        end = "_percent" if self.measure.fraction else ""
        heading = [*self.scores.columns[:2], "seeds", f"mean{end}", f"{self.spread}{end}"]
        lines = [
            (*at, len(values), float(values.mean()), _spread(values, self.spread))
            for at, values in self.cells.items()
        ]
        return pd.DataFrame(lines, columns=heading)


def pivoted(
    runs: Sequence[Run],
    name: str,
    choice: Choice = Choice(),  # noqa: B008 - immutable
    *,
    spread: str = "std",
    value: Callable[[Run, np.ndarray], np.ndarray] | None = None,
) -> Pivot:
    """Return the table of algorithms (and their differing settings) by the values of settings.

    Runs that differ only in their seeds are one cell. A setting that goes with the column, such as
    the network of a data set, is no difference.

    Args:
      name: "dataset", or any other setting; of several, separated by commas, a column has a value
        each.
      choice: which scores.
      spread: "std" over seeds, or "interval", half the width of its 95 % interval.
      value: returns another number of a run's clients than the score, by seed.

    Raises:
      InputError: an unknown name, a cell with two runs of the same seed, different data, or one
        label of two rows or columns.
    """
    require_name("--spread", spread, SPREADS)
    model, split, average = choice.model, choice.split, choice.average
    runs = with_scores(runs, [model], split)
    names = split_at_commas(name) or [name]
    require(
        "seed" not in names, "--pivot", name, "settings without 'seed', over which cells average"
    )
    for one in names:
        runs = with_setting(runs, one)
    chosen = chosen_clients(runs, choice.clients, model, split)
    at = [", ".join(shown(run.settings[one]) for one in names) for run in runs]
    columns = list(dict.fromkeys(at))
    for column in columns:
        first, *others = (run for run, where in zip(runs, at, strict=True) if where == column)
        other = next((run for run in others if not same_data(run, first)), None)
        if other is not None and not choice.different_data:
            raise InputError(
                f"{first.folder} and {other.folder} both have {name} {column}, but not the same "
                f"data: {first.data_name} and {other.data_name}; --different_data allows it."
            )
    columns_of = [(run.algorithm, column) for run, column in zip(runs, at, strict=True)]
    differ = _differing_settings(runs, columns_of, choice, names)
    rows = [", ".join([run.algorithm, *named_settings(run, differ)]) for run in runs]
    require_different_labels(rows)
    require_different_labels(columns)
    scores: list[tuple[str, str, int, float]] = []
    pooled: dict[tuple[str, str], list[Run]] = {}
    remarks: dict[tuple[str, str], list[str]] = {}
    for run, row, column, mine in zip(runs, rows, at, chosen, strict=True):
        if value is None:
            values = one_number(curve(run, mine, model, split, average), choice.score, run.measure)
        else:
            values = value(run, mine)
        place, what = (renamed(row), renamed(column)), f"{row} with {name} {column}"
        same = pooled.setdefault(place, [])
        for other in same:
            both = set(run.seeds) & set(other.seeds)
            if both:
                raise InputError(
                    f"{run.folder} is {what} and seed {min(both)}, which another run is, too: "
                    "leave one of them out."
                )
        same.append(run)
        if len(same) > 1 and REVISION in differing_settings(same) and REVISION not in names:
            raise InputError(
                f"{same[0].folder} and {run.folder} are both {what}, but one has no recorded "
                "revision, or another one: leave one of them out."
            )
        scores += [(*place, s, v) for s, v in zip(run.seeds, values.tolist(), strict=True)]
        sentences = remarks.setdefault(place, [])
        sentences += [one for one in run.remarks if one not in sentences]
    measure = runs[0].measure
    frame = pd.DataFrame(scores, columns=["row", name, "seed", measure.column])
    data = {renamed(c): str(run.settings[DATASET]) for run, c in zip(runs, at, strict=True)}
    hidden = _hidden_settings(runs, choice, names, differ)
    over = describe_clients(runs, chosen, average, across=True)
    made = Pivot(frame, spread, [], over, measure, data, hidden=hidden)
    several = [values for values in made.cells.values() if len(values) > 1]
    made.notes.extend([RANKED, *grouped_by_column(remarks), *mixed_code(pooled.values())])
    if hidden:
        made.notes.append(f"Columns also differ in {', '.join(hidden)}.")
    if several:
        seeds = extent([len(values) for values in made.cells.values()])
        kind = {"std": "standard deviation", "interval": "half of the 95 % interval"}[spread]
        made.notes.insert(0, f"±: {kind} over seeds, {seeds} of them.")
    if spread == "interval":
        made.notes.extend(interval_notes(several, *measure.range))
    return made


def _differing_settings(
    runs: Sequence[Run], groups: Sequence[Hashable], choice: Choice, ignore: Sequence[str]
) -> list[str]:
    """Return settings in which runs of one group differ."""
    result = []
    for one in varying(runs, (*ignore, ALGORITHM, *REPEATS), choice.moved_by):
        seen: dict[Hashable, set[str]] = {}
        for run, group in zip(runs, groups, strict=True):
            if one in run.settings:
                seen.setdefault(group, set()).add(repr(run.settings[one]))
        if any(len(values) > 1 for values in seen.values()):
            result.append(one)
    return result


def _hidden_settings(
    runs: Sequence[Run], choice: Choice, names: Sequence[str], rows: Sequence[str]
) -> list[str]:
    """Return settings in which columns differ beside those of columns and rows.

    Those of a data set's network are `model`.
    """
    full = [f"{run.algorithm}.{name}" for run in runs for name in names if name not in run.flags]
    shown_ones = (*names, *full, *rows)
    found = _differing_settings(runs, [run.algorithm for run in runs], choice, shown_ones)
    folded = NETWORK if DATASET in names else ()
    return list(dict.fromkeys("model" if one in folded else one for one in found))
