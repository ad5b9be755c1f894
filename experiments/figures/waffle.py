"""WAFFLE (Beaussart et al. 2021): weights by round, Omega, Weight Erosion's distance penalty."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm

from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import require

from .accuracy import by_round
from .drawing import SMALL, Drawing, figure, numbers_of, of_run
from .runs import Run
from .selection import labels, with_record
from .settings import against_setting

figure(
    "waffle/accuracy",
    "best accuracy so far by round, over the clients that all runs score (WAFFLE Fig. 4, 6, 7)",
    by_round,
    best_so_far=True,
)
figure(
    "waffle/penalty",
    "Weight Erosion with and without distance penalty, by distributions (WAFFLE Fig. 5, Table 4)",
    against_setting,
    x="distribution,sample_shares",
    group="distance_penalty",
    score="best",
)


@figure("waffle/weights", "weight of every client by round (WAFFLE Fig. 3)")
def weights(runs: Sequence[Run], *, record: str = "weight") -> Drawing:
    """Weights of all clients against the round: a heat map and lines, one column for each run.

    Alice, where the run serves a single client, is in the middle of the heat map; the others are
    around her in the order of their numbers. Means over seeds; the band of Alice's line goes from
    the lowest seed to the highest.

    Args:
      record: name of the algorithm's record, [S, T, N].
    """
    runs = with_record(runs, record)
    values = [run.records[record].astype(float) for run in runs]
    top = max(float(np.nanmax(one)) for one in values) or 1.0
    norm, width = PowerNorm(0.5, vmin=0.0, vmax=top), max(3.6 * len(runs), 5.0) + 1.6
    shape = {"sharex": "col", "height_ratios": (1.2, 1.0)}
    drawing = Drawing(width, 5.4, [len(runs)] * 2, **shape)
    columns = zip(runs, labels(runs), values, *drawing.rows, strict=True)
    for run, name, value, upper, lower in columns:
        n, rounds, alice = run.num_clients, run.record_rounds, run.alice
        order = (np.arange(n) + (0 if alice is None else alice - n // 2)) % n
        mean = np.nan_to_num(value).mean(axis=0)  # absent clients have none
        image = plots.heat(upper, mean[:, order].T, norm)
        image.set_clim(0.0, top)
        plots.ticks(upper.yaxis, n, 12, [str((run.client_names or range(n))[i]) for i in order])
        upper.set_title(name, **SMALL)
        place = np.arange(len(rounds))
        for i in set(range(n)) - {alice}:
            drawing.band(lower, place, value[:, :, i], None, "each of the others", marker="")
        if alice is not None:
            drawing.band(lower, place, value[:, :, alice], 0, "Alice", linewidth=2)
        lower.set_ylim(0, 1.04 * top)
        plots.tidy(lower, xlabel="round")
        step = max(1, -(-len(rounds) // 5))
        where = np.arange(step - 1, len(rounds), step)
        lower.set_xticks(where, rounds[where])
        places = {"seed": run.seeds, "round": rounds, "client": range(n)}
        drawing.add({record: value}, places, **of_run(run, name))
    alices = "Alice" in drawing.handles
    drawing.rows[0][0].set_ylabel("client (Alice in the middle)" if alices else "client")
    drawing.rows[1][0].set_ylabel(record)
    drawing.colorbar(image, drawing.rows[0], f"{record} (white: 0)")
    if alices:
        names = ["Alice", "each of the others"]
        drawing.figure.legend(
            [drawing.handles[name] for name in names], names, loc="outside lower center", ncols=2,
            frameon=False, fontsize=9,
        )  # fmt: skip
    seeds = max(len(run.seeds) for run in runs)
    spread = f"; mean of {seeds} seeds, band of hers from lowest to highest" if seeds > 1 else ""
    drawing.title(f"{record} of every client{spread}")
    return drawing


@figure("waffle/omega", "Omega by round for several slopes (WAFFLE Fig. 8)", needs_runs=False)
def omega(runs: Sequence[Run] = (), *, delta_omega: str = "1,3.2,10", rounds: int = 100) -> Drawing:
    """Omega(r) = Psi(r) = 1 / (1 + exp(DeltaOmega (2 r / R - 1))), eq. (4).

    Args:
      delta_omega: values of DeltaOmega; the paper's is 3.2.
      rounds: R.
    """
    slopes = numbers_of("delta_omega", delta_omega, "1,3.2")
    require(rounds >= 1, "--rounds", rounds, "at least 1")
    drawing, r = Drawing(5.6, 3.6), np.arange(1, rounds + 1)
    (axes,) = drawing.axes
    for k, slope in enumerate(slopes):
        value, label = 1 / (1 + np.exp(slope * (2 * r / rounds - 1))), f"{slope:g}"
        (drawing.handles[label],) = axes.plot(r, value, label=label, **plots.style(k))
        drawing.add({"omega": value}, {"round": r}, delta_omega=slope)
    drawing.by_round("Ω = Ψ")
    axes.set_ylim(-0.02, 1.02)
    drawing.legend("ΔΩ")
    return drawing
