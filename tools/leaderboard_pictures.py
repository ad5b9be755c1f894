"""The picture of the leaderboard: mean ranks, and accuracy by cost."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter
from matplotlib.transforms import Bbox

from experiments.outputs.run_files import atomic_write
from fedjax_pfl.results.plots import COLOURS, GREY
from fedjax_pfl.results.significance import Ranking

DEPTH = 6.0  # points below the median to which accuracies are drawn


def picture(
    path: Path,
    ranking: Ranking,
    times: Sequence[float],
    shown: Sequence[str],
    marked: Collection[str],
) -> None:
    """Draw both panels.

    Args:
      path: of the PNG file.
      ranking: of all rows.
      times: of their rounds, in FedAvg's; NaN where unknown.
      shown: rows with a rank, and a name beside their accuracy.
      marked: those of another colour.
    """
    figure = Figure(figsize=(11, 0.9 + 0.2 * max(16, len(shown))), layout="constrained")
    left, right = figure.subplots(1, 2)
    _ranks(left, ranking, shown, marked)
    _costs(right, ranking, times, shown, marked)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    with atomic_write(path) as part:
        figure.savefig(part, format="png", dpi=110)


def _ranks(axes: Axes, ranking: Ranking, shown: Sequence[str], marked: Collection[str]) -> None:
    """Draw mean ranks, ± half of Nemenyi's critical difference."""
    places = [list(ranking.names).index(name) for name in shown]
    half, k = ranking.critical_difference() / 2, len(ranking.names)
    for y, (name, mean) in enumerate(zip(shown, ranking.mean_ranks[places], strict=True)):
        colour = COLOURS[1] if name in marked else COLOURS[0]
        axes.errorbar(mean, y, xerr=half, fmt="o", color=colour, ecolor=GREY, markersize=4)
    axes.axvline(ranking.mean_ranks.min() + half, color="0.35", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(shown)), shown, fontsize=8)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(1, k)
    axes.set_xlabel(
        f"mean rank of {k} over {len(ranking.blocks)} settings, ± half of Nemenyi's critical\n"
        "difference; rows whose bars begin right of the line differ from the first",
        fontsize=8,
    )


def _costs(
    axes: Axes,
    ranking: Ranking,
    times: Sequence[float],
    shown: Collection[str],
    marked: Collection[str],
) -> None:
    """Draw the mean accuracy by the time of a round; triangles are below the axis."""
    means, named = ranking.scores.mean(axis=0), []
    bottom = max(means.min(), float(np.median(means)) - DEPTH)
    for name, time, mean in zip(ranking.names, times, means, strict=True):
        colour = COLOURS[1] if name in marked else COLOURS[0]
        axes.plot(time, max(mean, bottom), "o" if mean >= bottom else "v", color=colour,
                  markersize=4)  # fmt: skip
        if name in shown and not np.isnan(time):
            named.append((name, (time, max(mean, bottom))))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks([1, 2, 5, 10])
    axes.set_ylim(bottom=bottom - 0.5)
    axes.set_xlabel("time of a round divided by FedAvg's", fontsize=8)
    axes.set_ylabel("accuracy % (chosen), mean over settings", fontsize=8)
    _names(axes, named, list(zip(times, np.maximum(means, bottom), strict=True)))


def _names(
    axes: Axes,
    named: Sequence[tuple[str, tuple[float, float]]],
    points: Sequence[tuple[float, float]],
) -> None:
    """Write names beside their points where they cover nothing."""
    axes.figure.draw_without_rendering()  # lays the panels out
    known = [point for point in points if not np.isnan(point).any()]
    taken = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in axes.transData.transform(known)]
    for name, point in named:
        offsets = [(5 if right else -5, up) for up in (-2, 6, -10) for right in (1, 0)]
        for x, y in offsets:
            side = "left" if x > 0 else "right"
            text = axes.annotate(
                name, point, (x, y), textcoords="offset points", ha=side, fontsize=7
            )
            box = text.get_window_extent()
            if box.count_overlaps(taken) == 0:
                taken.append(box)
                break
            text.remove()
