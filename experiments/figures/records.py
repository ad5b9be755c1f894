"""Records of the clients by round, such as their weight on their own models."""

from collections.abc import Sequence

import numpy as np

from ..outputs import looks
from ..outputs.run_files import mean_over_clients
from . import drawing
from .drawing import Drawing, figure
from .runs import Run
from .selection import labels, with_record

COLUMNS = ("run", "label", "record", "seed", "round", "value")


@figure("records/rounds", "a record of the clients by round: self-weights of mixing algorithms")
def by_round(runs: Sequence[Run], *, record: str = "self_weight") -> Drawing:
    """A record against the round, mean over the round's members; one line for each run.

    Args:
      record: its name in `clients.npz`. With "self_weight" a line near 1 is an algorithm whose
        clients hardly mix any more.
    """
    runs = with_record(runs, record)
    names, styles = labels(runs), looks.numbers([run.algorithm for run in runs])
    chart = drawing.canvas(5.8, 4.0)
    axes = chart.add_subplot()
    lines, table = [], []
    for run, name, k in zip(runs, names, styles, strict=True):
        values = mean_over_clients(run.record(record).astype(float))  # [S, T]
        lines.append(drawing.band(axes, run.record_rounds, values, k, name))
        table += [
            (str(run.folder), name, record, seed, int(number), float(value))
            for seed, line in zip(run.seeds, values, strict=True)
            for number, value in zip(run.record_rounds, line, strict=True)
            if np.isfinite(value)
        ]
    drawing.tidy(axes, ylabel=record)
    drawing.round_axis(axes)
    drawing.legend(chart, lines)
    seeds = drawing.over_seeds(max(len(run.seeds) for run in runs))
    drawing.title(chart, f"{record}, mean over the clients that took part{seeds}")
    return Drawing(chart, COLUMNS, table)
