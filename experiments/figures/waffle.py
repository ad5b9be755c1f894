"""WAFFLE (Beaussart et al. 2021): weights by round, Omega, Weight Erosion's distance penalty."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm

from fedjax_pfl.utils.errors import InputError, require

from . import drawing
from .accuracy import by_round
from .drawing import Drawing, figure, long_form, of_run
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


@figure("waffle/weights", "weight of every agent by round (WAFFLE Fig. 3)")
def weights(runs: Sequence[Run], *, record: str = "weight") -> Drawing:
    """Weights of all clients against the round: a heat map and lines, one column for each run.

    Alice, where the run serves a single client, is in the middle of the heat map; the others are
    around her in the order of their numbers. Means over seeds; the band of Alice's line goes from
    the lowest seed to the highest.

    Args:
      record: name of the algorithm's record, [S, T, N].
    """
    runs = with_record(runs, record)
    names = labels(runs)
    values = [run.record(record).astype(float) for run in runs]
    top = max(float(np.nanmax(one)) for one in values) or 1.0
    norm = PowerNorm(0.5, vmin=0.0, vmax=top)
    chart = drawing.canvas(max(3.6 * len(runs), 5.0) + 1.6, 5.4)
    grid = chart.subplots(2, len(runs), squeeze=False, sharex="col", height_ratios=(1.2, 1.0))
    table, lines = [], []
    for j, (run, name, value) in enumerate(zip(runs, names, values, strict=True)):
        upper, lower = grid[:, j]
        n, rounds, alice = run.num_clients, run.record_rounds, run.alice
        order = (np.arange(n) + (0 if alice is None else alice - n // 2)) % n
        mean = np.nan_to_num(value).mean(axis=0)  # absent clients have none
        image = drawing.heat(upper, mean[:, order].T, norm)
        image.set_clim(0.0, top)
        drawing.ticks(upper.yaxis, n, 12, [str((run.client_names or range(n))[i]) for i in order])
        upper.set_title(name, fontsize=10)
        for i in range(n):
            if i != alice:
                others = drawing.band(
                    lower, np.arange(len(rounds)), value[:, :, i], None, marker=""
                )
        if alice is not None:
            hers = drawing.band(lower, np.arange(len(rounds)), value[:, :, alice], 0, linewidth=2)
            lines = [hers, others]
        lower.set_ylim(0, 1.04 * top)
        drawing.tidy(lower, xlabel="round")
        step = max(1, -(-len(rounds) // 5))
        where = np.arange(step - 1, len(rounds), step)
        lower.set_xticks(where, rounds[where])
        places = {"seed": run.seeds, "round": rounds, "client": range(n)}
        table.append(long_form({record: value}, places, **of_run(run, name)))
    grid[0, 0].set_ylabel("client (Alice in the middle)" if lines else "client")
    grid[1, 0].set_ylabel(record)
    drawing.colorbar(chart, image, list(grid[0]), f"{record} (white: 0)")
    if lines:
        chart.legend(
            lines, ["Alice", "each of the others"], loc="outside lower center", ncols=2,
            frameon=False, fontsize=9,
        )  # fmt: skip
    seeds = max(len(run.seeds) for run in runs)
    spread = f"; mean of {seeds} seeds, band of hers from lowest to highest" if seeds > 1 else ""
    drawing.title(chart, f"{record} of every client{spread}")
    return Drawing.of(chart, table)


@figure("waffle/omega", "Omega by round for several slopes (WAFFLE Fig. 8)", needs_runs=False)
def omega(runs: Sequence[Run] = (), *, delta_omega: str = "1,3.2,10", rounds: int = 100) -> Drawing:
    """Omega(r) = Psi(r) = 1 / (1 + exp(DeltaOmega (2 r / R - 1))), eq. (4).

    Args:
      delta_omega: values of DeltaOmega; the paper's is 3.2.
      rounds: R.
    """
    try:
        slopes = [float(word) for word in delta_omega.split(",")]
    except ValueError as error:
        raise InputError(
            f"--delta_omega must be numbers such as 1,3.2, got {delta_omega!r}."
        ) from error
    require(rounds >= 1, "--rounds", rounds, "at least 1")
    chart = drawing.canvas(5.6, 3.6)
    axes = chart.add_subplot()
    r = np.arange(1, rounds + 1)
    lines, table = [], []
    for k, slope in enumerate(slopes):
        value = 1 / (1 + np.exp(slope * (2 * r / rounds - 1)))
        lines += axes.plot(r, value, label=f"{slope:g}", **drawing.style(k))
        table.append(long_form({"omega": value}, {"round": r}, delta_omega=slope))
    drawing.tidy(axes, ylabel="Ω = Ψ", ylim=(-0.02, 1.02))
    drawing.round_axis(axes)
    drawing.legend(chart, lines, "ΔΩ")
    return Drawing.of(chart, table)
