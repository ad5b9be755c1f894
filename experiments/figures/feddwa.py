"""FedDWA (IJCAI 2023): chosen neighbours, mixing matrices, K, guidance."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap, Normalize, PowerNorm

from fedjax_pfl.utils.errors import require

from . import drawing
from .accuracy import of_models, side_by_side
from .drawing import Drawing, figure
from .matrices import (
    chosen_neighbours,
    rounds_kept,
    seed_row,
    square_clients,
    weight_numbers,
    within_groups,
)
from .runs import Run
from .selection import labels, with_matrix
from .settings import against_setting

figure(
    "feddwa/top_k", "accuracy against K for several alpha (FedDWA Fig. 2)", against_setting,
    x="top_k", group="alpha",
)  # fmt: skip
figure(
    "feddwa/guidance_epochs", "accuracy against the epochs of guidance models (FedDWA Fig. 3)",
    against_setting, x="guidance_epochs", group="dataset",
)  # fmt: skip
figure(
    "feddwa/guidance", "best accuracy of guidance and personalized models (FedDWA Table 3)",
    side_by_side, models="guidance,personalized", score="best",
)  # fmt: skip
figure(
    "feddwa/guidance_rounds", "guidance and personalized models by round (FedDWA Fig. 7, 8)",
    of_models, models="guidance,personalized",
)  # fmt: skip


@figure("feddwa/neighbours", "clients' choices by round and algorithm (FedDWA Fig. 1)")
def neighbours(
    runs: Sequence[Run],
    *,
    matrix: str = "mixing",
    top_k: int = 5,
    rounds: str = "",
    seed: int | None = None,
) -> Drawing:
    """The K largest weights of each client, one row of pictures for each run, rounds in columns.

    Where the partition has groups of clients, lines separate them, and the title gives the part of
    the choices within the client's own group.

    Args:
      matrix: name of a recorded matrix; groups of layers are averaged.
      top_k: K.
      rounds: some of the recorded ones; all by default.
      seed: the first by default.
    """
    require(top_k >= 1, "--top_k", top_k, "at least 1")
    runs = with_matrix(runs, matrix)
    names = labels(runs)
    kept = [rounds_kept(run, rounds) for run in runs]
    columns = max(map(len, kept))
    chart = drawing.canvas(2.4 * columns + 0.6, 2.6 * len(runs) + 0.5)
    grid = chart.subplots(len(runs), columns, squeeze=False)
    table = []
    for row, run, name, at in zip(grid, runs, names, kept, strict=True):
        for axes in row[len(at) :]:
            axes.remove()
        s = seed_row(run, seed)
        for axes, q in zip(row, at, strict=False):
            weights = run.matrix(matrix)[s, q].mean(axis=0)
            chosen = chosen_neighbours(weights, top_k)
            look = ListedColormap(["white", drawing.COLOURS[0]])
            drawing.heat(axes, chosen, Normalize(0, 1), look, edgecolors="white", linewidth=0.4)
            square_clients(axes, run)
            part = within_groups(run, chosen)
            inside = "" if part is None else f"\n{100 * part:.0f} % in own group"
            number = int(run.matrix_rounds[q])
            axes.set_title(f"round {number}{inside}", fontsize=9)
            chosen_weights = np.where(chosen, weights, np.nan)
            table.append(weight_numbers(run, name, run.seeds[s], number, chosen_weights))
        row[0].set_ylabel(f"{name}\nclient")
    for axes in grid[-1, : len(kept[-1])]:
        axes.set_xlabel("chosen client")
    drawing.title(chart, f"The {top_k} clients with the largest weights")
    return Drawing.of(chart, table)


@figure("feddwa/weights", "weights of one round, a panel for each run (FedDWA Fig. 4)")
def weights(
    runs: Sequence[Run],
    *,
    matrix: str = "mixing",
    rounds: str = "first",
    seed: int | None = None,
) -> Drawing:
    """Recorded weights of several runs, such as other numbers of clients and groups.

    Every panel has its own colour scale of square roots, from 0 to its largest weight: weights
    shrink with the number of clients.

    Args:
      matrix: name of a recorded matrix; groups of layers are averaged.
      rounds: one or several of the recorded ones; the first by default, as in the paper.
      seed: the first by default.
    """
    runs = with_matrix(runs, matrix)
    shown = [(run, name, q) for run, name in zip(runs, labels(runs), strict=True)
             for q in rounds_kept(run, rounds)]  # fmt: skip
    chart, grid = drawing.panels(len(shown), 3.6, 2.9)
    table = []
    for axes, (run, name, q) in zip(grid, shown, strict=True):
        s = seed_row(run, seed)
        values = run.matrix(matrix)[s, q].mean(axis=0)
        top = float(np.nanmax(values)) or 1.0
        image = drawing.heat(axes, values, PowerNorm(0.5, vmin=0.0, vmax=top))
        square_clients(axes, run)
        number = int(run.matrix_rounds[q])
        axes.set_title(f"{name}, round {number}", fontsize=9, wrap=True)
        axes.set(xlabel="sender", ylabel="receiver")
        drawing.colorbar(chart, image, axes, "weight (white: 0)")
        table.append(weight_numbers(run, name, run.seeds[s], number, values))
    return Drawing.of(chart, table)
