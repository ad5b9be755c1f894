"""Pictures of a sweep: a line over one setting, a heat map over two."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..figures import drawing


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _ordered(values: Sequence[str]) -> list[str]:
    """Numbers by size, words in their order."""
    distinct = list(dict.fromkeys(values))
    if all(_number(value) is not None for value in distinct):
        return sorted(distinct, key=float)
    return distinct


def picture(outcomes: Sequence, algorithm: str) -> Figure | None:
    """The outcomes of one algorithm: validation and test accuracy over one name of the grid, or
    validation accuracy over two; None for any other number of names.
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
    numbers = [number for number in map(_number, values) if number is not None]
    real = len(numbers) == len(values)
    spaced = real and min(numbers) > 0 and max(numbers) / min(numbers) >= 10
    x = numbers if real else range(len(values))
    chart = drawing.canvas(5.4, 3.8)
    axes = chart.add_subplot()
    lines = []
    for k, split in enumerate(("validation", "test")):
        curve = np.array([getattr(by_value[value], split) for value in values]).T
        lines.append(drawing.band(axes, x, curve, k, split, marker=drawing.marker(k)))
    if spaced:
        axes.set_xscale("log")
    axes.set_xticks(x, values)
    axes.minorticks_off()
    drawing.tidy(axes, xlabel=name, ylabel=outcomes[0].measure.axis)
    drawing.legend(chart, lines, None, ["validation", "test"])
    seeds = drawing.spread_of(len(outcomes[0].validation))
    drawing.title(chart, f"{algorithm}: mean over clients{seeds}")
    return chart


def _map(outcomes, algorithm, names) -> Figure:
    rows, columns = (_ordered([one.setting[name] for one in outcomes]) for name in names)
    grid = np.full((len(rows), len(columns)), np.nan)
    for one in outcomes:
        at = rows.index(one.setting[names[0]]), columns.index(one.setting[names[1]])
        grid[at] = one.validation.mean()
    chart = drawing.canvas(2.2 + 0.7 * len(columns), 1.6 + 0.5 * len(rows))
    axes = chart.add_subplot()
    image = axes.imshow(grid, cmap=drawing.SHADES, aspect="auto")
    middle = np.nanmin(grid) + 0.5 * np.ptp(grid[np.isfinite(grid)])
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            colour = "white" if value > middle else "black"
            axes.text(
                j,
                i,
                outcomes[0].measure.brief(value),
                ha="center",
                va="center",
                color=colour,
                fontsize=9,
            )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=names[1], ylabel=names[0])
    drawing.colorbar(chart, image, axes, f"validation {outcomes[0].measure.axis}")
    drawing.title(chart, f"{algorithm}: mean over clients and seeds")
    return chart
