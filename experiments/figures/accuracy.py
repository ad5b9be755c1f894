"""Figures of any runs: accuracy by round, of several models, by client; records by round."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedjax_pfl.results.intervals import interval

from ..outputs import looks
from ..outputs.run_files import mean_over_clients
from . import drawing
from .drawing import Drawing, figure, long_form, of_run
from .runs import Run
from .scores import SCORES, chosen_clients, curve, one_number, who
from .selection import labels, setting, shown, with_record, with_scores


@figure("accuracy/rounds", "accuracy by round, one line for each run")
def by_round(
    runs: Sequence[Run],
    *,
    model: str = "personalized",
    split: str = "test",
    average: str = "clients",
    best_so_far: bool = False,
    clients: str = "",
    panel: str = "",
) -> Drawing:
    """Mean accuracy against the round, one line for each run.

    Args:
      model, split: which accuracy.
      average: over "clients" or "samples".
      best_so_far: the best up to each round, instead.
      clients: their numbers; by default those that all runs score.
      panel: a setting; each of its values gets its own axes.
    """
    runs = with_scores(setting(runs, panel) if panel else runs, [model], split)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        title = f"{panel} = {shown(run.settings[panel])}" if panel else ""
        groups.setdefault(title, []).append(run)
    drawing.require_rounds(runs, "accuracy/rounds")
    names = {}
    for group in groups.values():
        names |= dict(zip(group, labels(group), strict=True))
    order = list(dict.fromkeys(names.values()))
    named = {name: {r.algorithm for r in runs if names[r] == name} for name in order}
    single = [next(iter(found)) if len(found) == 1 else "" for found in named.values()]
    styles = looks.numbers(single)
    rows = dict(zip(runs, chosen_clients(runs, clients, model, split), strict=True))
    size = (5.8, 4.0) if len(groups) == 1 else (3.6, 3.0)
    chart, grid = drawing.panels(len(groups), *size)
    table, lines, lasts = [], {}, {}
    for axes, (title, group) in zip(grid, groups.items(), strict=True):
        for run in group:
            values = curve(run, rows[run], model, split, average)
            if best_so_far:
                values = run.measure.best_so_far(values)
            k = order.index(names[run])
            lines[k] = drawing.band(axes, run.eval_rounds, values, styles[k], names[run])
            lasts[k] = np.nanmean(values[:, -1])
            table.append(_numbers(run, names[run], title, model, values))
        axes.set_title(title, fontsize=10)
        drawing.tidy(axes, ylabel=runs[0].measure.axis if drawing.leftmost(axes) else "")
        drawing.round_axis(axes)
    measure, alone = runs[0].measure, len(groups) == 1
    ranked = sorted(lines, key=lambda k: -measure.toward(lasts[k])) if alone else sorted(lines)
    texts = [f"{order[k]}  {measure.brief(lasts[k])}" if alone else order[k] for k in ranked]
    head = f"{'best' if best_so_far else 'last'} round" if alone else None
    head = f"{head}, %" if head and measure.fraction else head
    drawing.legend(chart, [lines[k] for k in ranked], head, texts)
    what = "best so far" if best_so_far else f"{model} model, {split} samples"
    seeds = drawing.over_seeds(runs)
    drawing.title(chart, f"{what}, {who(runs, list(rows.values()), average)}{seeds}")
    return Drawing.of(chart, table)


@figure("accuracy/models", "accuracy by round of several models of each run")
def of_models(
    runs: Sequence[Run],
    *,
    models: str = "personalized,global",
    averages: str = "",
    split: str = "test",
    by: str = "run",
) -> Drawing:
    """Accuracy by round of several models; a model scored in one round only is a marker there.

    Args:
      models: names, one line (or axes) for each.
      averages: "clients" or "samples" for each model; over clients by default.
      split: which samples.
      by: one axes for each "run", or for each "model".
    """
    wanted = [name.strip() for name in models.split(",")]
    means = [word.strip() for word in averages.split(",")] if averages else ["clients"]
    means = means * len(wanted) if len(means) == 1 else means
    drawing.check_lengths("averages", means, wanted)
    drawing.check_choice("by", by, ("run", "model"))
    runs = with_scores(runs, wanted, split)
    names = labels(runs)
    outer, inner = (names, wanted) if by == "run" else (wanted, names)
    chart, grid = drawing.panels(len(outer), 3.8, 3.2, sharey=by == "run")
    lines, table = {}, []
    by_run = by == "run"
    styles = looks.of_models(wanted) if by_run else looks.numbers([r.algorithm for r in runs])
    for run, name in zip(runs, names, strict=True):
        for model, average in zip(wanted, means, strict=True):
            rows = chosen_clients([run], "", model, split)[0]
            values = curve(run, rows, model, split, average)
            at, k = (name, model) if by == "run" else (model, name)
            axes, k = grid[outer.index(at)], inner.index(k)
            # Two models may be the same: dashes show the line beneath.
            more = {"linestyle": drawing.DASHES[styles[k] % len(drawing.DASHES)]} if by_run else {}
            lines[k] = drawing.band(axes, run.eval_rounds, values, styles[k], **more)
            end = f", mean over {average}" if by == "model" else ""
            axes.set_title(f"{at} model{end}" if by == "model" else at, fontsize=10)
            table.append(_numbers(run, name, at, model, values))
    for axes in grid:
        drawing.tidy(axes, ylabel=runs[0].measure.axis if drawing.leftmost(axes) else "")
        drawing.round_axis(axes)
    ends = [f" (mean over {mean})" if len(set(means)) > 1 else "" for mean in means]
    texts = [m + end for m, end in zip(wanted, ends, strict=True)] if by == "run" else names
    drawing.legend(chart, [lines[k] for k in sorted(lines)], None, texts)
    seeds = drawing.over_seeds(runs)
    said = runs[0].measure.label
    drawing.title(chart, f"{said[:1].upper()}{said[1:]} on {split} samples{seeds}")
    return Drawing.of(chart, table)


@figure("accuracy/pairs", "two or more models of each run side by side")
def side_by_side(
    runs: Sequence[Run],
    *,
    models: str = "personalized,global",
    score: str = "final",
    split: str = "test",
) -> Drawing:
    """One accuracy of several models, a row of points for each run.

    Points are means over clients and seeds, whiskers go from the lowest seed to the highest.

    Args:
      models: names.
      score: "final", "best" or "last_tenth".
      split: which samples.
    """
    wanted = [name.strip() for name in models.split(",")]
    runs = with_scores(runs, wanted, split)
    names = labels(runs)
    chart = drawing.canvas(6.2, 1.5 + 0.45 * len(runs))
    axes = chart.add_subplot()
    lines, table, styles = [], [], looks.of_models(wanted)
    for k, model in enumerate(wanted):
        points = []
        for run, name in zip(runs, names, strict=True):
            rows = chosen_clients([run], "", model, split)[0]
            values = one_number(curve(run, rows, model, split), score, run.measure)
            points.append((values.mean(), values.min(), values.max()))
            facts = {**of_run(run, name), "model": model, "score": score}
            table.append(long_form({run.measure.column: values}, {"seed": run.seeds}, **facts))
        mean, low, high = np.array(points).T
        height = np.arange(len(runs)) + 0.22 * (k - (len(wanted) - 1) / 2)
        whisker = (mean - low, high - mean)
        drawn = axes.errorbar(
            mean, height, xerr=whisker, fmt=drawing.marker(styles[k]),
            color=drawing.colour(styles[k]), capsize=3, markersize=6, label=model,
        )  # fmt: skip
        lines.append(drawn)
    axes.set_yticks(range(len(runs)), names)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    drawing.tidy(axes, xlabel=runs[0].measure.axis)
    axes.grid(axis="y", visible=False)
    drawing.legend(chart, lines, "model")
    seeds = drawing.over_seeds(runs, "whiskers")
    said = f"{split} {runs[0].measure.label}, {SCORES[score]}"
    drawing.title(chart, f"{said}, mean over clients{seeds}")
    return Drawing.of(chart, table)


@figure("accuracy/clients", "accuracy of every client in each run")
def by_client(
    runs: Sequence[Run],
    *,
    model: str = "personalized",
    split: str = "test",
    score: str = "final",
) -> Drawing:
    """Accuracy of each client, one row of points for each run; lines are means over clients.

    Args:
      model, split: which accuracy.
      score: "final", "best" (each client's own best round) or "last_tenth".
    """
    runs = with_scores(runs, [model], split)
    names = labels(runs)
    most = max(run.num_clients for run in runs)
    chart = drawing.canvas(float(np.clip(4.5 + 0.22 * most, 6.5, 13.0)), 4.0)
    axes = chart.add_subplot()
    styles = looks.apart(looks.numbers([run.algorithm for run in runs]))
    lines, table = [], []
    for k, (run, name) in enumerate(zip(runs, names, strict=True)):
        values = run.measure.scale * run.values(model, split).astype(float)  # [S, E, N]
        scored = np.flatnonzero(np.isfinite(values).any(axis=(0, 1)))
        each = np.array(  # [N', S]
            [one_number(values[:, :, i], score, run.measure) for i in scored]
        )
        where = scored + 0.6 * ((k + 0.5) / len(runs) - 0.5)
        mean = each.mean(axis=1)
        whisker = (mean - each.min(axis=1), each.max(axis=1) - mean)
        colour = drawing.colour(styles[k])
        lines.append(
            axes.errorbar(
                where, mean, yerr=whisker, fmt=drawing.marker(styles[k]),
                color=colour, markersize=4, capsize=2, elinewidth=0.8, zorder=3,
            )
        )  # fmt: skip
        axes.axhline(mean.mean(), color=colour, linewidth=1, linestyle="--", zorder=1)
        facts = {**of_run(run, name), "model": model, "score": score}
        places = {"seed": run.seeds, "client": scored}
        table.append(long_form({run.measure.column: each.T}, places, **facts))
    drawing.tidy(axes, xlabel="client", ylabel=runs[0].measure.axis, xlim=(-0.5, most - 0.5))
    drawing.ticks(axes.xaxis, most, 20)
    drawing.legend(chart, lines, None, names)
    drawing.title(
        chart,
        f"{model} model, {split} samples, {SCORES[score]}; whiskers: lowest and highest seed, "
        "dashed: mean over clients",
    )
    return Drawing.of(chart, table)


@figure("accuracy/bars", "accuracy of each run as a bar, with its interval over seeds")
def bars(
    runs: Sequence[Run],
    *,
    model: str = "personalized",
    split: str = "test",
    score: str = "final",
    average: str = "clients",
    clients: str = "",
) -> Drawing:
    """Mean accuracy over seeds, a bar for each run; whiskers are 95 % intervals (Student's t).

    A run with one seed has no whisker.

    Args:
      model, split, average, clients: which accuracy.
      score: "final", "best" or "last_tenth".
    """
    runs = with_scores(runs, [model], split)
    names, chosen = labels(runs), chosen_clients(runs, clients, model, split)
    styles = looks.apart(looks.numbers([run.algorithm for run in runs]))
    chart = drawing.canvas(1.6 + 0.9 * len(runs), 3.8)
    axes, table = chart.add_subplot(), []
    for k, (run, name, rows) in enumerate(zip(runs, names, chosen, strict=True)):
        values = one_number(curve(run, rows, model, split, average), score, run.measure)
        half = interval(values)
        axes.bar(k, values.mean(), color=drawing.colour(styles[k]), width=0.7, zorder=2)
        if half is not None:
            axes.errorbar(k, values.mean(), half, color="0.2", capsize=4, zorder=3)
        row = {"seeds": len(values), run.measure.column: values.mean(), "ci95_half_width": half}
        table.append(pd.DataFrame([{**of_run(run, name), **row}]))
    axes.set_xticks(range(len(runs)), names)
    if sum(map(len, names)) > 10 * len(names):
        axes.tick_params(axis="x", rotation=30)
    measure = runs[0].measure
    drawing.tidy(axes, ylabel=measure.axis)
    axes.grid(axis="x", visible=False)
    text = f"{model} model, {split} samples, {SCORES[score]}, {who(runs, chosen, average)}"
    drawing.title(chart, f"{text}; whiskers: 95 % interval over seeds")
    return Drawing.of(chart, table)


@figure("records/rounds", "a record of the clients by round: self-weights of mixing algorithms")
def of_record(runs: Sequence[Run], *, record: str = "self_weight") -> Drawing:
    """A record against the round, mean over the round's members; one line for each run.

    Args:
      record: its name in `clients.npz`. With "self_weight" a line near 1 is an algorithm whose
        clients hardly mix any more.
    """
    runs = with_record(runs, record)
    names = labels(runs)
    means = [mean_over_clients(run.record(record).astype(float)) for run in runs]  # [S, T]
    curves = [(run.record_rounds, values) for run, values in zip(runs, means, strict=True)]
    chart, axes = drawing.run_lines(runs, names, curves, (5.8, 4.0), ylabel=record)
    drawing.round_axis(axes)
    seeds = drawing.over_seeds(runs)
    drawing.title(chart, f"{record}, mean over the clients that took part{seeds}")
    table = [
        long_form({"value": values}, {"seed": run.seeds, "round": run.record_rounds},
                  **of_run(run, name), record=record)
        for run, name, values in zip(runs, names, means, strict=True)
    ]  # fmt: skip
    return Drawing.of(chart, table)


def _numbers(run: Run, name: str, panel: str, model: str, values: np.ndarray) -> pd.DataFrame:
    axes = {"seed": run.seeds, "round": run.eval_rounds}
    facts = {**of_run(run, name), "panel": panel, "model": model}
    return long_form({run.measure.column: values}, axes, **facts)


figure(
    "plga/accuracy",
    "clients' mean accuracy and the server's on all test samples, by round (PLGA Fig. 2)",
    of_models,
    models="personalized,global",
    averages="clients,samples",
    by="model",
)
