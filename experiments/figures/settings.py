"""Accuracy, and any record, against a setting over several runs, as in most ablations."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import InputError

from ..outputs import line_styles
from ..outputs.run_files import mean_over_clients
from .drawing import Drawing, figure, spread_of
from .lines import axis_of, draw_lines, mark_places
from .pivots import pivoted
from .runs import Run
from .scores import SCORES, Choice
from .selection import varying, with_record

TRAFFIC = "traffic"
UNITS = {TRAFFIC: "MB a client sends and receives in a round"}


@figure("accuracy/setting", "accuracy against any setting of several runs, a line for each row")
def against_setting(
    runs: Sequence[Run],
    *,
    x: str = "",
    score: str = "final",
    model: str = "personalized",
    split: str = "test",
    record: str = "",
    clients: str = "",
) -> Drawing:
    """Accuracy against a setting: the table of `experiments.compare --pivot`, drawn.

    A line for each algorithm, or several where runs of one algorithm differ in further settings.
    Points are means over seeds, bands and whiskers go from the lowest to the highest.

    Args:
      x: a setting, or several with commas, as names in `config.json`: a flag such as alpha, a
        hyperparameter such as top_k or feddwa.top_k (only FedDWA's runs then).
      score: "final", "best" or "last_tenth".
      model, split: which accuracy.
      record: shown beside it: an algorithm's record for each client, as the mean over those of
        the clients that took part in the last round, or "traffic", the megabytes a client sends
        and receives in a round.
      clients: their numbers; by default those that all runs score.

    Raises:
      InputError: unknown names, or two runs of one row and setting that have a seed in common.
    """
    if not x:
        differ = ", ".join(varying(runs)) or "no setting"
        raise InputError(f"Choose a setting with --x=NAME; these runs differ in {differ}.")
    choice = Choice(score, model, split, clients=clients, different_data=True)
    if record and record != TRAFFIC:
        runs = with_record(runs, record)
    made = [pivoted(runs, x, choice)]
    labels = [f"{split} {made[0].measure.axis}"]
    if record:
        made.append(pivoted(runs, x, choice, value=partial(_last, record=record)))
        labels.append(UNITS.get(record, f"{record} (last round)"))
    drawing = Drawing.panels(len(made), 5.4 if len(made) == 1 else 4.6, 3.8)
    rows = list(dict.fromkeys(row for row, _ in made[0].cells))
    algorithms = [row.partition(",")[0] for row in rows]
    single = [one if algorithms.count(one) == 1 else "" for one in algorithms]
    styles = dict(zip(rows, line_styles.numbers(single), strict=True))
    places, scale = axis_of(list(dict.fromkeys(column for _, column in made[0].cells)))
    for axes, pivot, label in zip(drawing.axes, made, labels, strict=True):
        values: dict[str, list[tuple[float, np.ndarray]]] = {row: [] for row in rows}
        for (row, column), one in pivot.cells.items():
            values[row].append((places[column], one))
        draw_lines(drawing, axes, values, styles, scale)
        plots.tidy(axes, xlabel=x, ylabel=label)
        mark_places(axes, places, scale)
        drawing.tables.append(pivot.scores.set_axis(["row", x, "seed", "value"], axis=1))
        drawing.tables[-1]["metric"] = label
    drawing.legend()
    mark = "whiskers" if scale == "words" else "band"
    counts = [len(one) for one in made[0].cells.values()]
    hidden = made[0].hidden
    more = f"; columns also differ in {', '.join(hidden)}" if hidden else ""
    drawing.title(f"{model} model, {SCORES[score]}, {made[0].over}{spread_of(counts, mark)}{more}")
    return drawing


def _last(run: Run, rows: np.ndarray, record: str) -> np.ndarray:
    """Return a record's mean over clients in the last round, [S], or the run's traffic."""
    if record == TRAFFIC:
        sent = (run.traffic("up") + run.traffic("down"))[..., rows]
        present = np.maximum(run.records["participated"][..., rows].sum(axis=(1, 2)), 1)
        return sent.sum(axis=(1, 2)) / present / 1e6
    return mean_over_clients(run.recorded(record)[:, -1, rows])
