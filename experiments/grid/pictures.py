"""Pictures of a sweep: a line over one setting, a heat map over two."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedjax_pfl.results import plots
from fedjax_pfl.utils.metric_names import Measure

from ..figures.drawing import Drawing, spread_of
from ..figures.lines import axis_of, draw_lines, mark_places

SPLITS = ("validation", "test")


def picture(numbers: Any, algorithm: str, measure: Measure) -> Figure | None:
    """Draw an algorithm's validation and test accuracy over one name, or validation over two.

    Args:
      numbers: its rows of `ranking.frame`.

    Returns:
      The figure; None for any other number of names.
    """
    *settings, _, validation, test = numbers.columns[1:]
    names = [name for name in settings if numbers[name].nunique() > 1]
    if not 1 <= len(names) <= 2:
        return None
    places = [axis_of(numbers[name].unique().tolist()) for name in names]
    if len(names) == 2:
        table = numbers.pivot_table(validation, *names, sort=False)
        table = table.reindex(index=list(places[0][0]), columns=list(places[1][0]))
        return _map(table, algorithm, measure)
    ((where, scale),) = places
    drawing, rows = Drawing(5.4, 3.8), {}
    (axes,) = drawing.axes
    for split, column in zip(SPLITS, (validation, test), strict=True):
        each = numbers.groupby(names[0])[column]
        rows[split] = [(where[value], one.to_numpy()) for value, one in each]
    draw_lines(drawing, axes, rows, {split: k for k, split in enumerate(SPLITS)}, scale)
    plots.tidy(axes, xlabel=names[0], ylabel=measure.axis)
    mark_places(axes, where, scale)
    drawing.legend()
    drawing.title(f"{algorithm}: mean over clients{spread_of([numbers['seed'].nunique()])}")
    return drawing.figure


def _map(table: Any, algorithm: str, measure: Measure) -> Figure:
    grid = table.to_numpy(float)
    drawing = Drawing(2.2 + 0.7 * grid.shape[1], 1.6 + 0.5 * grid.shape[0])
    (axes,) = drawing.axes
    image = axes.imshow(grid, cmap=plots.SHADES, aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            look = {"ha": "center", "va": "center", "fontsize": 9}
            look["color"] = "white" if value > middle else "black"
            axes.text(j, i, measure.brief(value), **look)
    axes.set_xticks(range(grid.shape[1]), table.columns)
    axes.set_yticks(range(grid.shape[0]), table.index)
    axes.set(xlabel=table.columns.name, ylabel=table.index.name)
    drawing.colorbar(image, axes, f"validation {measure.axis}")
    drawing.title(f"{algorithm}: mean over clients and seeds")
    return drawing.figure
