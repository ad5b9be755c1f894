"""The numbers of a study: a table for each measure, gains of clients, and a figure."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedjax_pfl.results import harm, plots
from fedjax_pfl.results.comparison_plots import Panel
from fedjax_pfl.results.intervals import interval_notes
from fedjax_pfl.results.model_names import PERSONALIZED
from fedjax_pfl.results.notes import grouped_by_column
from fedjax_pfl.results.table import Table
from fedjax_pfl.utils.errors import InputError, require_name, unknown_name
from fedjax_pfl.utils.metric_names import HIGHER, LOWER, NEITHER, Measure

from ..figures.drawing import Drawing, spread_of
from ..figures.lines import axis_of, draw_lines, mark_places
from ..figures.pivots import Pivot
from ..figures.runs import Run, same_data
from ..figures.scores import chosen_clients, one_number
from ..outputs import line_styles

SETTING = "setting"
WORST = Measure("worst_decile")
ATTACKERS = Measure("attackers_weight", LOWER)  # a scalar that is a share
# Measures of test scores in the round that is best on validation samples: whether each client has
# its own.
VALIDATED = {"validation_round": False, "own_validation_round": True}
# Measures of concept drift: fields of a `Change`.
CHANGES = {
    "after_change": "after", "rounds_to_recover": "rounds_to_recover",
    "backward_transfer": "backward_transfer",
}  # fmt: skip


def _megabytes(way: str) -> Callable[[Run], np.ndarray]:
    return lambda run: run.traffic(way).sum(axis=1).mean(axis=1) / 1e6


def _gflop(run: Run) -> np.ndarray:
    flops = run.flops()
    return np.array([np.nan]) if flops is None else flops.sum(axis=1).mean(axis=1) / 1e9


def _seconds(run: Run) -> np.ndarray:
    return np.array([run.result.seconds_per_round], float)


def _around_changes(run: Run, name: str) -> tuple[Measure, np.ndarray]:
    """Return a measure of `CHANGES`, mean over changes; NaN where some seed has no finite one."""
    score, rounds = run.measure, name == "rounds_to_recover"
    measure = Measure(name, LOWER if rounds else HIGHER, fraction=False)  # no share: it has a sign
    if name == "after_change":
        measure = Measure(name, score.better, score.fraction)
    changes = run.result.changes() if "concept" in run.result.clients else []
    values = [(1 if rounds else score.scale) * getattr(one, CHANGES[name]) for one in changes]
    known = len(values) > 0 and bool(np.isfinite(values).all())
    return measure, np.mean(values, axis=0) if known else np.full(len(run.seeds), np.nan)


# Costs by name: (measure, its values [S] in a run).
COSTS: Mapping[str, tuple[Measure, Callable[[Run], np.ndarray]]] = {
    "megabytes_up": (Measure("megabytes_up", LOWER, fraction=False), _megabytes("up")),
    "megabytes_down": (Measure("megabytes_down", LOWER, fraction=False), _megabytes("down")),
    "gflop": (Measure("gflop", LOWER, fraction=False), _gflop),
    "seconds_per_round": (Measure("seconds_per_round", LOWER, fraction=False), _seconds),
}
NAMES = (*COSTS, WORST.name, *VALIDATED, *CHANGES)  # of --measures in any study
MEANINGS = {
    WORST.name: "mean over the worst tenth of the clients after the last round",
    "validation_round": "on test samples in the round with the best mean on validation samples",
    "own_validation_round": "on test samples in each client's round that is best on its own "
    "validation samples",
    "after_change": "in the first scored round after a change of concept",
    "rounds_to_recover": "until nine tenths of the drop after a change are undone, where they are "
    "in all seeds",
    "backward_transfer": "on the previous concept at the end of the next one, minus before the "
    "change, in points",
    "megabytes_up": "megabytes that a client sends in the whole run, mean over clients",
    "megabytes_down": "megabytes that a client receives in the whole run, mean over clients",
    "gflop": "1e9 floating-point operations of a client's local training in the whole run, mean "
    "over clients",
    "seconds_per_round": "seconds of a round of one seed, without compilation",
}


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic; linear up to the first positive value if there are zeros."""
    positive = [value for value in values if value > 0]
    if min(values, default=0) > 0:
        axes.set_xscale("log")
    elif positive and min(values) == 0:
        axes.set_xscale("symlog", linthresh=min(positive))


def check(measures: Sequence[str], x: str) -> None:
    """Raise `InputError` if `x` is neither "setting" nor one of the measures."""
    require_name("--x", x, [SETTING, *measures])


def check_metrics(measures: Sequence[str], found: Sequence[Sequence[Measure]]) -> None:
    """Check what the report needs of its cells; names that may be scalars are not known yet.

    Args:
      measures: of the command line.
      found: the metrics of each cell, the main one first.

    Raises:
      InputError: a metric that some cell does not have, no main metric in common, or a slip.
    """
    mains = list(dict.fromkeys(one[0].name for one in found))
    if not measures and len(mains) > 1:
        raise InputError(
            f"The cells have different main metrics, {' and '.join(mains)}: give --measures that "
            "all of them have."
        )
    known = [*NAMES]
    metrics = [{one.name for one in cell} for cell in found]
    known += sorted(set().union(*metrics))
    for name in measures:
        having = sum(name in cell for cell in metrics)
        if 0 < having < len(metrics):
            raise InputError(f"--measures={name} is a metric of {having} of {len(metrics)} cells.")
        if name not in known and difflib.get_close_matches(name, known, cutoff=0.8):
            raise unknown_name("--measures", name, known)


@dataclass(frozen=True)
class Report:
    """The finished runs of a study.

    Attributes:
      runs: by (row, setting), column by column.
      requested: names of `COSTS`, "worst_decile", metrics, or scalars that runs record; by default
        the task's main metric and "worst_decile".
      x: of the figure, "setting" or a measure.
    """

    runs: Mapping[tuple[str, str], Run]
    requested: Sequence[str] = ()
    x: str = SETTING

    @property
    def measures(self) -> Sequence[str]:
        """Names of the measures, in the order of the tables."""
        return self.requested or (next(iter(self.runs.values())).measure.name, WORST.name)

    @cached_property
    def clients(self) -> dict[Run, np.ndarray]:
        """Rows of the clients over which a run's means are taken.

        They are those that all runs on the same data score; if there are none, those of each run.
        """
        runs = list(self.runs.values())
        try:
            rows = chosen_clients(runs, "", PERSONALIZED, "test")
        except InputError:  # too late to refuse a study: headings say it
            rows = [np.flatnonzero(~np.isnan(run.values()).all(axis=(0, 1))) for run in runs]
        return dict(zip(runs, rows, strict=True))

    @property
    def whom(self) -> str:
        """The clients of means in words, such as "3 of 4 clients"."""
        counts = dict.fromkeys((len(rows), run.num_clients) for run, rows in self.clients.items())
        words = [f"all {n}" if n == known else f"{n} of {known}" for n, known in counts]
        return f"{' or '.join(words)} clients"

    def values(self, run: Run, name: str) -> tuple[Measure, np.ndarray]:
        """Return (measure, values [S] in the units of tables); NaN for what a run does not have.

        Raises:
          InputError: neither a cost, a metric nor a scalar.
        """
        if name in COSTS:
            measure, of = COSTS[name]
            return measure, of(run)
        known = {one.name: one for one in run.result.measures}
        if name in known or name == WORST.name:
            measure = known.get(name, run.measure)
            values = run.result.values("personalized", "test", measure.name)[:, 0]  # [S, E, N]
            values = measure.scale * values[:, :, self.clients[run]].astype(float)
            if name == WORST.name:
                worst = WORST._replace(better=measure.better, fraction=measure.fraction)
                return worst, one_number(measure.worst_tenth(values), "final", measure)
            return measure, one_number(np.nanmean(values, axis=-1), "final", measure)
        if name in CHANGES:
            return _around_changes(run, name)
        if name in VALIDATED:
            measure = Measure(name, run.measure.better, run.measure.fraction)
            values = run.result.at_best_validation(VALIDATED[name])[:, 0, self.clients[run]]
            return measure, measure.scale * np.nanmean(values.astype(float), axis=-1)
        scalars = run.result.scalars
        require_name("--measures", name, [*NAMES, *known, *self.scalars])
        measure = ATTACKERS if name == ATTACKERS.name else Measure(name, NEITHER, fraction=False)
        missing = np.full((len(run.seeds), 1, 1), np.nan)
        return measure, measure.scale * scalars.get(name, missing)[:, 0].mean(axis=-1)

    @cached_property
    def scalars(self) -> list[str]:
        """Names of the scalars of any run."""
        return sorted({name for run in self.runs.values() for name in run.result.scalars})

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """One row for each value: measure, row, setting, seed, value."""
        lines = [
            (name, *place, seed, value)
            for name in self.measures
            for place, run in self.runs.items()
            for seed, value in zip(run.seeds, self.values(run, name)[1].tolist(), strict=False)
        ]
        return pd.DataFrame(lines, columns=["measure", "row", SETTING, "seed", "value"])

    def measure(self, name: str) -> Measure:
        return self.values(next(iter(self.runs.values())), name)[0]

    def heading(self, name: str) -> str:
        """Return the title of a measure's table."""
        measure, where = self.measure(name), f"mean over {self.whom} after the last round"
        if name not in COSTS and name in self.scalars:
            where = "mean over the rounds"
        return f"{measure.title}: {MEANINGS.get(name, where)}"

    def table(self, name: str) -> Table:
        """Return the table of a measure."""
        return self.pivot(name).table()

    def pivot(self, name: str) -> Pivot:
        """Return the numbers of a measure by row and setting."""
        measure = self.measure(name)
        frame = self.numbers.query("measure == @name").drop(columns="measure")
        found = frame.dropna()
        scored = set(zip(found["row"], found[SETTING], strict=True))
        # Of a cell with a score, NaN of a seed stays in sight.
        frame = frame.loc[[at in scored for at in zip(frame["row"], frame[SETTING], strict=True)]]
        extremes = frame.groupby(["row", SETTING])["value"].agg(["min", "max"])
        if len(found) == len(frame) and np.allclose(*extremes.T.values):
            frame = frame.drop_duplicates(["row", SETTING])  # the same for all seeds
        frame = frame.rename(columns={"value": measure.column})
        data = {setting: str(run.settings["dataset"]) for (_, setting), run in self.runs.items()}
        rows, columns = ([*dict.fromkeys(names)] for names in zip(*self.runs, strict=True))
        made = Pivot(frame, "interval", [], "", measure, data, (rows, columns))
        made.notes.extend(interval_notes(made.cells.values(), *measure.range))
        return made

    @cached_property
    def gains(self) -> list[Panel]:
        """Gains of rows over `local` and `fedavg`, where one of them is a row, by setting."""
        found = []
        for setting in dict.fromkeys(setting for _, setting in self.runs):
            rows = {row: run for (row, at), run in self.runs.items() if at == setting}
            over = harm.gains_over_baselines(rows, self._gains)
            found += [Panel(setting, base, gains) for base, gains in over.items()]
        return found

    def _gains(self, run: Run, base: Run) -> harm.Gains:
        """Return the gains of the clients of means."""
        if not same_data(run, base):
            raise InputError("Rows on other data have no gains over the baseline.")
        made = run.result.gains(base.result)
        chosen = np.isin(np.arange(run.num_clients), self.clients[run])
        return replace(made, values=np.where(chosen, made.values, np.nan))

    @property
    def baselines(self) -> list[str]:
        """Names of the rows that gains are over."""
        return list(dict.fromkeys(panel.baseline for panel in self.gains))

    @cached_property
    def styles(self) -> dict[str, int]:
        """Styles of the rows' lines."""
        algorithms: dict[str, str] = {}
        for (row, _), run in self.runs.items():
            algorithms.setdefault(row, run.algorithm)
        return dict(zip(algorithms, line_styles.numbers(list(algorithms.values())), strict=True))

    def notes(self) -> list[str]:
        """Return notes on the runs; those of all settings name none."""
        several = any(len(run.seeds) > 1 for run in self.runs.values())
        first = [
            "±: half of the 95 % interval over seeds. Bands: from the lowest seed to the highest."
        ]
        remarks = grouped_by_column({at: run.remarks for at, run in self.runs.items()})
        return [*(first if several else []), *remarks]

    def drawing(self) -> Drawing:
        """Draw each measure against the settings or another measure, a line for each row."""
        shown = [name for name in self.measures if name != self.x]
        drawing = Drawing.panels(len(shown), 4.6, 3.8, columns=2)
        value = self.numbers.groupby(["measure", "row", SETTING], sort=False)["value"]
        cells = {at: values.to_numpy(float) for at, values in value}
        places, scale = axis_of(list(dict.fromkeys(setting for _, setting in self.runs)))
        if self.x != SETTING:
            places, scale = {}, "linear"
        for axes, name in zip(drawing.axes, shown, strict=True):
            rows: dict[str, list[tuple[float, np.ndarray]]] = {row: [] for row in self.styles}
            for row, setting in self.runs:
                at = places[setting] if places else cells[self.x, row, setting].mean()
                if np.isfinite(at):
                    rows[row].append((float(at), cells[name, row, setting]))
            draw_lines(drawing, axes, rows, self.styles, scale)
            plots.tidy(axes, xlabel=self._label(self.x), ylabel=self._label(name))
            if places:
                mark_places(axes, places, scale)
                axes.set_xlabel("")
            else:
                _scale(axes, [at for points in rows.values() for at, _ in points])
                axes.xaxis.set_major_formatter("{x:g}")
        drawing.legend()
        seeds = [len(run.seeds) for run in self.runs.values()]
        drawing.title(f"mean over {self.whom}{spread_of(seeds)}")
        return drawing

    def _label(self, name: str) -> str:
        return name if name == SETTING else self.measure(name).axis
