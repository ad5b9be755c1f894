"""Pictures of the leaderboard: mean ranks, and accuracy by cost."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.outputs.run_files import atomic_write
from fedjax_pfl.results.plots import COLOURS, GREY
from fedjax_pfl.results.significance import Ranking


def ranks(path: Path, ranking: Ranking, shown: Sequence[str], marked: Collection[str]) -> None:
    """Draw mean ranks, ± half of Nemenyi's critical difference, of the rows `shown`."""
    places = [list(ranking.names).index(name) for name in shown]
    half = ranking.critical_difference() / 2
    figure = Figure(figsize=(7, 0.8 + 0.2 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for y, (name, mean) in enumerate(zip(shown, ranking.mean_ranks[places], strict=True)):
        colour = COLOURS[1] if name in marked else COLOURS[0]
        axes.errorbar(mean, y, xerr=half, fmt="o", color=colour, ecolor=GREY, markersize=4)
    axes.axvline(ranking.mean_ranks.min() + half, color="0.35", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(shown)), shown, fontsize=8)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel(
        f"mean rank of {len(ranking.names)} over {len(ranking.blocks)} settings, ± half of "
        "Nemenyi's critical difference;\nrows right of the dashed line differ from the first",
        fontsize=9,
    )
    _save(path, figure, axes)


def cost(path: Path, ranking: Ranking, times: Sequence[float], marked: Collection[str]) -> None:
    """Draw the mean accuracy by the time of a round, with the names of the best for their time."""
    means = ranking.scores.mean(axis=0)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for k, name in enumerate(ranking.names):
        leads = not any(times[i] <= times[k] and means[i] > means[k] for i in range(len(means)))
        named = leads or name in marked
        axes.plot(times[k], means[k], "o", color=COLOURS[1] if leads else COLOURS[0], markersize=4)
        if named:
            axes.annotate(name, (times[k], means[k]), (4, 3), textcoords="offset points",
                          fontsize=8)  # fmt: skip
    axes.set_xscale("log")
    axes.set_ylim(bottom=float(np.quantile(means, 0.05)) - 2)
    axes.set_xlabel("time of a round divided by FedAvg's", fontsize=9)
    axes.set_ylabel("accuracy %, mean over settings", fontsize=9)
    _save(path, figure, axes)


def _save(path: Path, figure: Figure, axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    with atomic_write(path) as part:
        figure.savefig(part, format="png", dpi=130)
