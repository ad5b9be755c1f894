"""Pictures of comparisons: sorted gains of clients, ranks over data sets."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_pfl.results import plots
from fedjax_pfl.results.harm import WIN, Gains
from fedjax_pfl.utils.metric_names import ACCURACY

if TYPE_CHECKING:
    from fedjax_pfl.results.significance import Ranking


class Panel(NamedTuple):
    """Gains over a baseline by name, under a title."""

    title: str
    baseline: str
    gains: Mapping[str, Gains]


def draw_gains(
    axes: Axes, gains: Mapping[str, Gains], baseline: str, styles: Mapping[str, int]
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
        look: dict[str, Any] = plots.style(styles[name]) | (
            {"marker": "o"} if len(values) < 4 else {}
        )
        label = f"{name}  {ACCURACY.brief(100 * one.summary()[WIN].value)} %"
        (handles[label],) = axes.plot(places, values, label=label, **look)
    measure = next(iter(gains.values())).measure
    axes.axhline(0, color="0.2", linewidth=0.8, zorder=1)
    unit = ", points" if measure.fraction else ""
    plots.tidy(
        axes, xlabel="clients and seeds, sorted, %",
        ylabel=f"gain over {baseline} in {measure.label}{unit}", xlim=(0, 100),
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


def rank_diagram(ranking: "Ranking", alpha: float = 0.05) -> Figure:
    """Plot Demsar's diagram: mean ranks, and bars over rows that do not differ by Nemenyi's test.

    The better half of the rows has its names at the left, the rest at the right.
    """
    order = np.argsort(ranking.mean_ranks, kind="stable")
    names, ranks = [ranking.names[i] for i in order], ranking.mean_ranks[order]
    reach, k = ranking.critical_difference(alpha), len(names)
    places = dict(zip(names, ranks, strict=True))
    bars = [(places[group[0]], places[group[-1]]) for group in ranking.groups(alpha)]
    half, first = -(-k // 2), 1.0 + 0.5 * len(bars)  # height of the first name below the axis
    depth = first + half
    most = max(map(len, names))
    figure = plots.canvas(5.0 + 0.16 * most, 1.2 + 0.24 * depth)
    axes = figure.add_subplot()
    low, high = 1.0, max(float(k), 1.0 + reach)
    for place in range(1, k + 1):
        axes.plot([place, place], [0, 0.25], color="0.2", linewidth=1)
        axes.text(place, 0.4, str(place), ha="center", va="bottom", fontsize=9)
    axes.plot([low, k], [0, 0], color="0.2", linewidth=1)
    axes.plot([low, low + reach], [1.9, 1.9], color="0.2", linewidth=2)
    text = f"critical difference {reach:.2f}"
    axes.text(low + reach / 2, 2.1, text, ha="center", va="bottom", fontsize=9)
    margin = 0.03 * (high - low)
    for i, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        left = i < half
        down = -(first + (i if left else k - 1 - i))
        end = low - margin if left else high + margin
        axes.plot([rank, rank, end], [0, down, down], color="0.35", linewidth=0.8)
        label = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        beside = end - margin if left else end + margin
        axes.text(beside, down, label, ha="right" if left else "left", va="center", fontsize=9)
    for i, (start, end) in enumerate(bars):
        level = -0.5 * (i + 1)
        axes.plot([start - margin, end + margin], [level] * 2, color=plots.COLOURS[0], linewidth=3)
    axes.set(xlim=(low - 3 * margin, high + 3 * margin), ylim=(-depth, 3.2))
    axes.set_axis_off()
    return figure
