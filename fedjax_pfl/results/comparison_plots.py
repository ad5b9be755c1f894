"""Pictures of comparisons: sorted gains of clients."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedjax_pfl.results import plots
from fedjax_pfl.results.harm import WIN, Gains
from fedjax_pfl.utils.metric_names import ACCURACY


class Panel(NamedTuple):
    """Gains over a baseline by name, under a title."""

    title: str
    baseline: str
    gains: Mapping[str, Gains]


def draw_gains(
    axes, gains: Mapping[str, Gains], baseline: str, styles: Mapping[str, int]
) -> dict[str, Any]:
    """Draw the sorted gains of each name over a baseline; return the lines by label.

    Args:
      gains: by the name that the legend shows, with the share of the pairs that are better off.
      baseline: its name.
      styles: numbers of the lines' styles by name.
    """
    handles = {}
    for name, one in gains.items():
        values = np.sort(one.measure.scale * one.values[~np.isnan(one.values)])
        places = 100 * (np.arange(len(values)) + 0.5) / len(values)
        look = plots.style(styles[name]) | ({"marker": "o"} if len(values) < 4 else {})
        label = f"{name}  {ACCURACY.brief(100 * one.summary()[WIN].value)} %"
        (handles[label],) = axes.plot(places, values, label=label, **look)
    measure = next(iter(gains.values())).measure
    axes.axhline(0, color="0.2", linewidth=0.8, zorder=1)
    unit = ", points" if measure.fraction else ""
    plots.tidy(
        axes, xlabel="clients and seeds, sorted, %", ylabel=f"gain over {baseline}{unit}",
        xlim=(0, 100),
    )  # fmt: skip
    return handles


def sorted_gains(panels: Sequence[Panel], styles: Mapping[str, int]) -> Figure:
    """Plot the sorted gains of clients and seeds.

    Args:
      panels: one axes for each, two in a row.
      styles: numbers of the lines' styles by name.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = plots.canvas(6.4 * columns, 4.2 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes, (title, baseline, gains) in zip(grid, panels, strict=False):
        draw_gains(axes, gains, baseline, styles)
        axes.set_title(title, fontsize=10)
        axes.legend(
            title=f"better than {baseline}", loc="center left", bbox_to_anchor=(1.01, 0.5),
            frameon=False, alignment="left",
        )  # fmt: skip
    return figure
