"""Compares two or more runs: accuracy against cost, and which clients gain or lose."""

from collections.abc import Sequence

import numpy as np

from fedjax_pfl.utils.errors import InputError

from . import drawing
from .drawing import Drawing, figure, long_form, of_run
from .runs import Run, same_data
from .scores import SCORES, chosen_clients, curve, one_number, who
from .selection import labels, with_scores

COSTS = {
    "rounds": "round",
    "megabytes": "MB sent and received by all clients",
    "gflop": "GFLOP of all clients' local training",
    "seconds": "seconds",
}


def cost_curve(run: Run, cost: str) -> np.ndarray:
    """The cost of a run up to its evaluated rounds, [S, E]; seconds at its median pace.

    Raises:
      InputError: a run of a version that did not count that cost.
    """
    rounds = np.asarray(run.eval_rounds)
    if cost == "rounds":
        return np.tile(rounds.astype(float), (len(run.seeds), 1))
    if cost == "seconds":
        pace = run.result.seconds_per_round
        return np.tile(rounds * pace, (len(run.seeds), 1))
    if cost == "gflop":
        flops = run.flops()
        if flops is None:
            raise InputError(f"{run.folder} has no FLOPs: it was run before they were counted.")
        paid = flops.sum(axis=-1) / 1e9
    else:
        paid = (run.traffic("up") + run.traffic("down")).sum(axis=-1) / 1e6
    return np.cumsum(paid, axis=1)[:, rounds - 1]


@figure("accuracy/cost", "accuracy against rounds, transmitted megabytes, GFLOPs or seconds")
def by_cost(
    runs: Sequence[Run],
    *,
    x: str = "megabytes",
    model: str = "personalized",
    split: str = "test",
    average: str = "clients",
    clients: str = "",
) -> Drawing:
    """Mean accuracy against its cost so far, one line for each run.

    Args:
      x: "rounds", "megabytes" (all clients, both ways), "gflop" (all clients' local training) or
        "seconds" (rounds times the run's median wall time of a round, evaluation included).
      model, split, average, clients: which accuracy.
    """
    drawing.check_choice("x", x, tuple(COSTS))
    runs = with_scores(runs, [model], split)
    drawing.require_rounds(runs, "accuracy/cost")
    names, chosen = labels(runs), chosen_clients(runs, clients, model, split)
    values = [
        curve(run, rows, model, split, average) for run, rows in zip(runs, chosen, strict=True)
    ]
    costs = [cost_curve(run, x) for run in runs]
    # Seeds differ in traffic only where their cohorts do: the mean places the line.
    curves = [(cost.mean(axis=0), own) for cost, own in zip(costs, values, strict=True)]
    measure = runs[0].measure
    labels_ = {"xlabel": COSTS[x], "ylabel": measure.axis}
    chart, _ = drawing.run_lines(runs, names, curves, (6.4, 4.2), **labels_)
    seeds = drawing.over_seeds(runs)
    drawing.title(chart, f"{model} model, {split} samples, {who(runs, chosen, average)}{seeds}")
    table = [
        long_form({x: cost, measure.column: own}, {"seed": run.seeds, "round": run.eval_rounds},
                  **of_run(run, name))
        for run, name, cost, own in zip(runs, names, costs, values, strict=True)
    ]  # fmt: skip
    return Drawing.of(chart, table)


@figure("accuracy/scatter", "every client's accuracy in one run against another's")
def scatter(
    runs: Sequence[Run],
    *,
    model: str = "personalized",
    split: str = "test",
    score: str = "final",
) -> Drawing:
    """Which clients gain or lose: a point for each client, mean over the seeds of both runs.

    The first run is across, every other one upward in axes of its own; above the line its clients
    are better off (below it where lower is better). Clients with equal accuracies are grey. The
    title counts them.

    Args:
      model, split: which accuracy.
      score: "final", "best" (each client's own best round) or "last_tenth".
    """
    runs = with_scores(runs, [model], split)
    if len(runs) < 2:
        raise InputError("accuracy/scatter compares runs: give at least two.")
    first, *others = runs
    names = labels(runs)
    chart, grid = drawing.panels(len(others), 4.0, 4.0)
    table = []
    for axes, run, name in zip(grid, others, names[1:], strict=True):
        if not same_data(run, first):
            raise InputError(
                "accuracy/scatter needs the same clients with the same samples in all runs, got "
                f"{first.data_name} ({names[0]}) and {run.data_name} ({name})."
            )
        common = [seed for seed in first.seeds if seed in run.seeds]
        if not common:
            raise InputError(f"{names[0]} and {name} have no seed in common.")
        rows = chosen_clients([first, run], "", model, split)[0]
        across, upward = (
            np.array([_of_client(one, client, common, model, split, score) for client in rows])
            for one in (first, run)
        )
        gain = upward - across
        measure = run.measure
        gain = measure.toward(gain)
        better, worse = int((gain > 1e-9).sum()), int((gain < -1e-9).sum())
        low, high = float(min(across.min(), upward.min())), float(max(across.max(), upward.max()))
        margin = 0.05 * (high - low)
        low, high = (low - 2, 101) if measure.fraction else (low - margin, high + margin)
        axes.plot([low, high], [low, high], color=drawing.GREY, linewidth=1, zorder=1)
        ties = len(gain) - better - worse
        colours = np.where(gain >= 0, drawing.COLOURS[0], drawing.COLOURS[1])
        colours = np.where(np.abs(gain) <= 1e-9, drawing.TIE, colours)
        axes.scatter(across, upward, c=colours, s=22, zorder=2)
        axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
        equal = f", {ties} equal" if ties else ""
        axes.set_title(f"{name}: {better} better, {worse} worse{equal}", fontsize=10)
        unit = ", %" if measure.fraction else f", {measure.axis}"
        drawing.tidy(axes, xlabel=f"{names[0]}{unit}", ylabel=f"{name}{unit}")
        both = {f"{measure.name}_across": across, f"{measure.name}_upward": upward}
        facts = {"label_across": names[0], "label_upward": name}
        table.append(long_form(both, {"client": rows}, **facts))
    drawing.title(chart, f"Clients: {model} model, {split} samples, {SCORES[score]}")
    return Drawing.of(chart, table)


def _of_client(run: Run, client: int, seeds, model: str, split: str, score: str) -> float:
    at = [run.seeds.index(seed) for seed in seeds]
    values = run.measure.scale * run.values(model, split)[at][:, :, client].astype(float)
    return float(one_number(values, score, run.measure).mean())
