"""Pictures of a sweep: a line over one setting, a heat map over two."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from fedjax_pfl.results import plots

from ..figures.drawing import Drawing, spread_of


def number(text: str) -> float | None:
    """Convert a text to a number, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def _ordered(values: Sequence[str]) -> list[str]:
    """Sort numbers by size; words keep their order."""
    distinct = list(dict.fromkeys(values))
    if all(number(value) is not None for value in distinct):
        return sorted(distinct, key=float)
    return distinct


def picture(outcomes: Sequence, algorithm: str) -> Figure | None:
    """Draw an algorithm's validation and test accuracy over one name, or validation over two.

    Returns:
        The figure; None for any other number of names.
    """
    names = [
        name for name in outcomes[0].setting if len({one.setting[name] for one in outcomes}) > 1
    ]
    if len(names) == 1:
        return _line(outcomes, algorithm, names[0])
    if len(names) == 2:
        return _map(outcomes, algorithm, names)
    return None


def _line(outcomes, algorithm, name) -> Figure:
    values = _ordered([one.setting[name] for one in outcomes])
    by_value = {one.setting[name]: one for one in outcomes}
    numbers = [one for one in map(number, values) if one is not None]
    real = len(numbers) == len(values)
    spaced = real and min(numbers) > 0 and max(numbers) / min(numbers) >= 10
    x = numbers if real else range(len(values))
    drawing = Drawing(5.4, 3.8)
    (axes,) = drawing.axes
    for k, split in enumerate(("validation", "test")):
        curve = np.array([getattr(by_value[value], split) for value in values]).T
        drawing.band(axes, x, curve, k, split, marker=plots.marker(k))
    if spaced:
        axes.set_xscale("log")
    axes.set_xticks(x, values)
    axes.minorticks_off()
    plots.tidy(axes, xlabel=name, ylabel=outcomes[0].measure.axis)
    drawing.legend()
    seeds = spread_of([len(outcomes[0].validation)])
    drawing.title(f"{algorithm}: mean over clients{seeds}")
    return drawing.figure


def _map(outcomes, algorithm, names) -> Figure:
    rows, columns = (_ordered([one.setting[name] for one in outcomes]) for name in names)
    grid = np.full((len(rows), len(columns)), np.nan)
    for one in outcomes:
        at = rows.index(one.setting[names[0]]), columns.index(one.setting[names[1]])
        grid[at] = one.validation.mean()
    drawing = Drawing(2.2 + 0.7 * len(columns), 1.6 + 0.5 * len(rows))
    (axes,), measure = drawing.axes, outcomes[0].measure
    image = axes.imshow(grid, cmap=plots.SHADES, aspect="auto")
    middle = np.nanmin(grid) + 0.5 * np.ptp(grid[np.isfinite(grid)])
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            look = {"ha": "center", "va": "center", "fontsize": 9}
            look["color"] = "white" if value > middle else "black"
            axes.text(j, i, measure.brief(value), **look)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=names[1], ylabel=names[0])
    drawing.colorbar(image, axes, f"validation {measure.axis}")
    drawing.title(f"{algorithm}: mean over clients and seeds")
    return drawing.figure
