"""FedDWA (IJCAI 2023): chosen neighbours, mixing matrices, K, guidance."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap, Normalize, PowerNorm

from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import require

from .accuracy import of_models, side_by_side
from .drawing import Drawing, figure
from .matrices import (
    Recorded,
    add_weights,
    chosen_neighbours,
    recorded,
    square_clients,
    within_groups,
)
from .runs import Run
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
    of: dict[Run, list[Recorded]] = {}
    for one in recorded(runs, matrix, rounds, seed):
        of.setdefault(one[0], []).append(one)
    counts = [len(matrices) for matrices in of.values()]
    drawing = Drawing(2.4 * max(counts) + 0.6, 2.6 * len(of) + 0.5, counts)
    look = ListedColormap(["white", plots.COLOURS[0]])
    for row, matrices in zip(drawing.rows, of.values(), strict=True):
        for axes, (run, name, seed_shown, number, weights) in zip(row, matrices, strict=True):
            mean = weights.mean(axis=0)
            chosen = chosen_neighbours(mean, top_k)
            plots.heat(axes, chosen, Normalize(0, 1), look, edgecolors="white", linewidth=0.4)
            square_clients(axes, run)
            part = within_groups(run, chosen)
            inside = "" if part is None else f"\n{100 * part:.0f} % in own group"
            axes.set_title(f"round {number}{inside}", fontsize=9)
            facts = {"seed": seed_shown, "round": number}
            add_weights(drawing, run, name, np.where(chosen, mean, np.nan), **facts)
        row[0].set_ylabel(f"{name}\nclient")
    for axes in drawing.rows[-1]:
        axes.set_xlabel("chosen client")
    drawing.title(f"The {top_k} clients with the largest weights")
    return drawing


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
    matrices = list(recorded(runs, matrix, rounds, seed))
    drawing = Drawing.panels(len(matrices), 3.6, 2.9)
    for axes, (run, name, seed_shown, number, layers) in zip(drawing.axes, matrices, strict=True):
        values = layers.mean(axis=0)
        top = float(np.nanmax(values)) or 1.0
        image = plots.heat(axes, values, PowerNorm(0.5, vmin=0.0, vmax=top))
        square_clients(axes, run)
        axes.set_title(f"{name}, round {number}", fontsize=9, wrap=True)
        axes.set(xlabel="sender", ylabel="receiver")
        drawing.colorbar(image, axes, "weight (white: 0)")
        add_weights(drawing, run, name, values, seed=seed_shown, round=number)
    return drawing
