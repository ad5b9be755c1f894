"""Figures that compare runs: accuracy against cost, and each client's gain or loss."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedjax_pfl.results import comparison_plots, plots
from fedjax_pfl.results.harm import Gains
from fedjax_pfl.utils.errors import InputError, require_name

from .drawing import Drawing, figure, of_run, over_seeds, require_rounds
from .run_table import baseline_runs
from .runs import Run, same_data
from .scores import Choice, chosen_clients, curve, describe_clients
from .selection import labels, renamed, with_scores, with_styles

COSTS = {
    "rounds": "round",
    "megabytes": "MB sent and received by all clients",
    "gflop": "GFLOP of all clients' local training",
    "seconds": "seconds",
}


def cost_curve(run: Run, cost: str) -> np.ndarray:
    """Return the cumulated cost of a run at its evaluated rounds, [S, E].

    Raises:
      InputError: a run of a version that did not count that cost.
    """
    rounds, one = np.asarray(run.result.eval_rounds), np.ones((len(run.seeds), 1))
    if cost == "rounds":
        return one * rounds
    if cost == "seconds":
        return one * (rounds * run.result.seconds_per_round)
    if cost == "gflop":
        each = run.flops()
        if each is None:
            raise InputError(f"{run.folder} has no FLOPs: it was run before they were counted.")
        each = each / 1e9
    else:
        each = (run.traffic("up") + run.traffic("down")) / 1e6
    return np.cumsum(each.sum(axis=-1), axis=1)[:, rounds - 1]


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
    require_name("value of --x", x, COSTS)
    runs = with_scores(runs, [model], split)
    require_rounds(runs, "accuracy/cost")
    chosen, measure = chosen_clients(runs, clients, model, split), runs[0].measure
    drawing = Drawing(6.4, 4.2)
    (axes,) = drawing.axes
    for (run, name, style), rows in zip(with_styles(runs), chosen, strict=True):
        values, cost = curve(run, rows, model, split, average), cost_curve(run, x)
        # Seeds differ in traffic only where their cohorts do: the mean places the line.
        drawing.band(axes, cost.mean(axis=0), values, style, name)
        places = {"seed": run.seeds, "round": run.result.eval_rounds}
        drawing.add({x: cost, measure.column: values}, places, **of_run(run, name))
    plots.tidy(axes, xlabel=COSTS[x], ylabel=measure.axis)
    drawing.legend()
    what = f"{model} model, {split} samples, {describe_clients(runs, chosen, average)}"
    drawing.title(f"{what}{over_seeds(runs)}")
    return drawing


@figure("accuracy/gains", "sorted gains of clients over a baseline, and who is harmed")
def sorted_gains(
    runs: Sequence[Run],
    *,
    baseline: str = "local",
    model: str = "personalized",
    split: str = "test",
) -> Drawing:
    """Gains over a baseline in every client and seed, sorted: below zero a client is worse off.

    The legend has the share of the pairs that are better than the baseline's; ties count half.

    Args:
      baseline: run, or algorithm, that is subtracted; several runs of one algorithm are pooled if
        they differ only in their seeds.
      model, split: which accuracy.
    """
    runs = with_scores(runs, [model], split)
    names = labels(runs)
    at = baseline_runs(baseline, runs, names, Choice(model=model))
    bases = [runs[k] for k in at]
    baseline = names[at[0]] if len(at) == 1 else renamed(bases[0].algorithm)
    if len(bases) == len(runs):
        raise InputError(f"accuracy/gains needs other runs beside those of {baseline!r}.")
    drawing, made = Drawing(6.4, 4.2), {}
    column = f"{runs[0].measure.name}_gain{'_points' * runs[0].measure.fraction}"
    for run, name in zip(runs, names, strict=True):
        if run not in bases:
            if not same_data(bases[0], run):
                raise InputError(
                    "accuracy/gains needs the same clients with the same samples in all runs, got "
                    f"{bases[0].data_name} ({baseline}) and {run.data_name} ({name})."
                )
            made[name] = _gains(run, bases, model, split)
            places = {"seed": made[name].seeds, "client": made[name].clients}
            values = run.measure.scale * made[name].values
            drawing.add({column: values}, places, **of_run(run, name))
    styles = {name: style for _, name, style in with_styles(runs)}
    drawing.handles = comparison_plots.draw_gains(drawing.axes[0], made, baseline, styles)
    drawing.legend(f"better than {baseline}")
    drawing.title(f"{model} model, {split} samples, after the last round; a client in a seed each")
    return drawing


def _gains(run: Run, bases: Sequence[Run], model: str, split: str) -> Gains:
    """Return the gains over runs of different seeds, in the seeds that are in common."""
    shared = [base for base in bases if set(base.seeds) & set(run.seeds)] or bases[:1]
    first, *others = (run.result.gains(base.result, model, split, run.metric) for base in shared)
    if not others:
        return first
    values, errors = (
        np.concatenate([getattr(one, name) for one in (first, *others)])
        for name in ("values", "errors")
    )
    seeds = tuple(seed for one in (first, *others) for seed in one.seeds)
    return replace(first, values=values, errors=errors, seeds=seeds)
