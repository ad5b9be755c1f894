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
      shown: rows with a rank.
      marked: rows with a name beside their accuracy; they have another colour.
    """
    figure = Figure(figsize=(11, 0.9 + 0.2 * max(16, len(shown))), layout="constrained")
    left, right = figure.subplots(1, 2)
    _ranks(left, ranking, shown, marked)
    _costs(right, ranking, times, marked)
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
    axes: Axes, ranking: Ranking, times: Sequence[float], marked: Collection[str]
) -> None:  # fmt: skip
    """Draw the mean accuracy by the time of a round, with the names of the best for their time."""
    means, named = ranking.scores.mean(axis=0), []
    for k in np.argsort(times):
        leads = not any(times[i] <= times[k] and means[i] > means[k] for i in range(len(means)))
        name = ranking.names[k]
        colour = COLOURS[1] if name in marked else COLOURS[0]
        axes.plot(times[k], means[k], "o", color=colour, markersize=4)
        if leads or name in marked:
            named.append((name, (times[k], means[k])))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks([1, 2, 5, 10])
    axes.set_ylim(bottom=float(np.quantile(means, 0.05)) - 1)
    axes.set_xlabel("time of a round divided by FedAvg's", fontsize=8)
    axes.set_ylabel("accuracy %, mean over settings", fontsize=8)
    _names(axes, named, list(zip(times, means, strict=True)))


def _names(
    axes: Axes,
    named: Sequence[tuple[str, tuple[float, float]]],
    points: Sequence[tuple[float, float]],
) -> None:
    """Write names beside their points, each at the nearest place where it covers nothing."""
    axes.figure.draw_without_rendering()  # lays the panels out
    known = [point for point in points if not np.isnan(point).any()]
    taken = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in axes.transData.transform(known)]
    for name, point in named:
        offsets = [(5 if right else -5, up) for up in (-2, 6, -10, 14, -18, 22) for right in (1, 0)]
        for x, y in offsets:
            side = "left" if x > 0 else "right"
            text = axes.annotate(
                name, point, (x, y), textcoords="offset points", ha=side, fontsize=7
            )
            box = text.get_window_extent()
            if box.count_overlaps(taken) == 0 or (x, y) == offsets[-1]:
                break
            text.remove()
        taken.append(box)
