"""Figures of any runs: accuracy by round, of several models, by client; records by round."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedjax_pfl.results import plots
from fedjax_pfl.results.intervals import interval
from fedjax_pfl.utils.errors import require, require_name

from ..outputs import line_styles
from ..outputs.run_files import mean_over_clients
from .drawing import SMALL, Drawing, figure, of_run, over_seeds, require_rounds, split_at_commas
from .runs import Run
from .scores import SCORES, chosen_clients, curve, describe_clients, one_number
from .selection import (
    labels,
    require_different_labels,
    shown,
    with_record,
    with_scores,
    with_setting,
    with_styles,
)


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
    runs = with_scores(with_setting(runs, panel) if panel else runs, [model], split)
    require_rounds(runs, "accuracy/rounds")
    require_different_labels(run.algorithm for run in runs)  # of one legend
    groups: dict[str, list[Run]] = {}
    for run in runs:
        title = f"{panel} = {shown(run.settings[panel])}" if panel else ""
        groups.setdefault(title, []).append(run)
    names = {
        run: name
        for group in groups.values()
        for run, name in zip(group, labels(group), strict=True)
    }
    algorithms: dict[str, set[str]] = {}
    for run, name in names.items():
        algorithms.setdefault(name, set()).add(run.algorithm)
    single = [next(iter(one)) if len(one) == 1 else "" for one in algorithms.values()]
    styles = dict(zip(algorithms, line_styles.numbers(single), strict=True))
    rows = dict(zip(runs, chosen_clients(runs, clients, model, split), strict=True))
    measure, only, last = runs[0].measure, len(groups) == 1, {}
    drawing = Drawing.panels(len(groups), *((5.8, 4.0) if only else (3.6, 3.0)))
    for axes, (title, group) in zip(drawing.axes, groups.items(), strict=True):
        for run in group:
            name, values = names[run], curve(run, rows[run], model, split, average)
            values = measure.best_so_far(values) if best_so_far else values
            drawing.band(axes, run.eval_rounds, values, styles[name], name)
            last[name] = np.nanmean(values[:, -1])
            _add(drawing, run, name, title, model, values)
        axes.set_title(title, **SMALL)
    drawing.by_round(measure.axis)
    if only:
        ranked = sorted(last, key=lambda name: -measure.toward(last[name]))
        handles = {f"{n}  {measure.brief(last[n])}": drawing.handles[n] for n in ranked}
        unit = ", %" if measure.fraction else ""
        drawing.legend(f"{'best' if best_so_far else 'last'} round{unit}", handles)
    else:
        drawing.legend()
    what = f"{model} model, {split} samples{', best so far' if best_so_far else ''}"
    drawing.title(
        f"{what}, {describe_clients(runs, list(rows.values()), average)}{over_seeds(runs)}"
    )
    return drawing


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

    Means are over the clients that all runs score with all models.

    Args:
      models: names, one line (or axes) for each.
      averages: "clients" or "samples" for each model; over clients by default.
      split: which samples.
      by: one axes for each "run", or for each "model".
    """
    chosen = split_at_commas(models)
    means = [word.strip() for word in averages.split(",")] if averages else ["clients"]
    means = means * len(chosen) if len(means) == 1 else means
    each = f"one for each of {', '.join(chosen)}"
    require(len(means) == len(chosen), "--averages", ",".join(means), each)
    require_name("value of --by", by, ("run", "model"))
    runs, by_run = with_scores(runs, chosen, split), by == "run"
    rows, several = chosen_clients(runs, "", chosen, split), len(set(means)) > 1
    panels = labels(runs) if by_run else chosen
    drawing = Drawing.panels(len(panels), 3.8, 3.2, sharey=by_run)
    axes_of = dict(zip(panels, drawing.axes, strict=True))
    for (run, name, style), own in zip(with_styles(runs), rows, strict=True):
        for model, average, k in zip(chosen, means, line_styles.of_models(chosen), strict=True):
            values = curve(run, own, model, split, average)
            if by_run:
                over = f" (mean over {average})" if several else ""
                # Two models may be the same: dashes show the line beneath.
                look = {"linestyle": plots.DASHES[k % len(plots.DASHES)]}
                panel, title, line = name, name, (k, model + over)
            else:
                look, title = {}, f"{model} model{f', mean over {average}' if several else ''}"
                panel, line = model, (style, name)
            drawing.band(axes_of[panel], run.eval_rounds, values, *line, **look)
            axes_of[panel].set_title(title, **SMALL)
            _add(drawing, run, name, panel, model, values)
    measure = runs[0].measure
    drawing.by_round(measure.axis)
    drawing.legend()
    what = f"{measure.label[:1].upper()}{measure.label[1:]} on {split} samples"
    whom = describe_clients(runs, rows, " or ".join(dict.fromkeys(means)))
    drawing.title(f"{what}, {whom}{over_seeds(runs)}")
    return drawing


@figure("accuracy/pairs", "two or more models of each run side by side")
def side_by_side(
    runs: Sequence[Run],
    *,
    models: str = "personalized,global",
    score: str = "final",
    split: str = "test",
) -> Drawing:
    """One accuracy of several models, a row of points for each run.

    Points are means over seeds and the clients that all runs score with all models; whiskers go
    from the lowest seed to the highest.

    Args:
      models: names.
      score: "final", "best" or "last_tenth".
      split: which samples.
    """
    chosen = split_at_commas(models)
    runs = with_scores(runs, chosen, split)
    names, measure = labels(runs), runs[0].measure
    rows = chosen_clients(runs, "", chosen, split)
    drawing = Drawing(6.2, 1.5 + 0.45 * len(runs))
    (axes,) = drawing.axes
    for k, (model, style) in enumerate(zip(chosen, line_styles.of_models(chosen), strict=True)):
        points = []
        for run, name, own in zip(runs, names, rows, strict=True):
            points.append(one_number(curve(run, own, model, split), score, measure))
            facts = {**of_run(run, name), "model": model, "score": score}
            drawing.add({measure.column: points[-1]}, {"seed": run.seeds}, **facts)
        height = np.arange(len(runs)) + 0.22 * (k - (len(chosen) - 1) / 2)
        drawing.points(axes, height, points, style, model, across=True, capsize=3, markersize=6)
    axes.set_yticks(range(len(runs)), names)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    plots.tidy(axes, xlabel=measure.axis)
    axes.grid(axis="y", visible=False)
    drawing.legend("model")
    what = f"{split} {measure.label}, {SCORES[score]}, {describe_clients(runs, rows)}"
    drawing.title(what + over_seeds(runs, "whiskers"))
    return drawing


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
    most, measure = max(run.num_clients for run in runs), runs[0].measure
    drawing = Drawing(float(np.clip(4.5 + 0.22 * most, 6.5, 13.0)), 4.0)
    (axes,), places = drawing.axes, _shifts(len(runs))
    styles = line_styles.distinct_colors([style for *_, style in with_styles(runs)])
    for run, name, style, shift in zip(runs, labels(runs), styles, places, strict=True):
        values = measure.scale * run.values(model, split).astype(float)  # [S, E, N]
        scored = np.flatnonzero(np.isfinite(values).any(axis=(0, 1)))
        each = [one_number(values[:, :, i], score, measure) for i in scored]  # [N'][S]
        look = {"markersize": 4, "capsize": 2, "elinewidth": 0.8, "zorder": 3}
        mean = drawing.points(axes, scored + 0.6 * shift, each, style, name, **look)
        line = {"linewidth": 1, "linestyle": "--", "zorder": 1}
        axes.axhline(mean.mean(), color=plots.colour(style), **line)
        facts = {**of_run(run, name), "model": model, "score": score}
        drawing.add(
            {measure.column: np.array(each).T}, {"seed": run.seeds, "client": scored}, **facts
        )
    plots.tidy(axes, xlabel="client", ylabel=measure.axis, xlim=(-0.5, most - 0.5))
    plots.ticks(axes.xaxis, most, 20)
    drawing.legend()
    drawing.title(
        f"{model} model, {split} samples, {SCORES[score]}; whiskers: lowest and highest seed, "
        "dashed: mean over clients"
    )
    return drawing


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
    styles = line_styles.distinct_colors([style for *_, style in with_styles(runs)])
    drawing, measure = Drawing(1.6 + 0.9 * len(runs), 3.8), runs[0].measure
    (axes,) = drawing.axes
    for k, (run, name, rows) in enumerate(zip(runs, names, chosen, strict=True)):
        values = one_number(curve(run, rows, model, split, average), score, measure)
        half = interval(values)
        axes.bar(k, values.mean(), color=plots.colour(styles[k]), width=0.7, zorder=2)
        if half is not None:
            axes.errorbar(k, values.mean(), half, color="0.2", capsize=4, zorder=3)
        row = {"seeds": len(values), measure.column: values.mean(), "ci95_half_width": half}
        drawing.tables.append(pd.DataFrame([of_run(run, name) | row]))
    axes.set_xticks(range(len(runs)), names)
    if sum(map(len, names)) > 10 * len(names):
        axes.tick_params(axis="x", rotation=30)
    plots.tidy(axes, ylabel=measure.axis)
    axes.grid(axis="x", visible=False)
    text = f"{model} model, {split} samples, {SCORES[score]}"
    text = f"{text}, {describe_clients(runs, chosen, average)}"
    drawing.title(f"{text}; whiskers: 95 % interval over seeds")
    return drawing


@figure("records/rounds", "a record of the clients by round: self-weights of mixing algorithms")
def of_record(runs: Sequence[Run], *, record: str = "self_weight") -> Drawing:
    """A record against the round, mean over the round's members; one line for each run.

    Args:
      record: its name in `clients.npz`. With "self_weight" a line near 1 is an algorithm whose
        clients hardly mix any more.
    """
    runs, drawing = with_record(runs, record), Drawing(5.8, 4.0)
    for run, name, style in with_styles(runs):
        values = mean_over_clients(run.records[record].astype(float))  # [S, T]
        drawing.band(drawing.axes[0], run.record_rounds, values, style, name)
        places = {"seed": run.seeds, "round": run.record_rounds}
        drawing.add({"value": values}, places, **of_run(run, name), record=record)
    drawing.by_round(record)
    drawing.legend()
    drawing.title(f"{record}, mean over the clients that took part{over_seeds(runs)}")
    return drawing


def _add(drawing: Drawing, run: Run, name: str, panel: str, model: str, values: np.ndarray) -> None:
    places = {"seed": run.seeds, "round": run.eval_rounds}
    facts = {**of_run(run, name), "panel": panel, "model": model}
    drawing.add({run.measure.column: values}, places, **facts)


def _shifts(count: int) -> np.ndarray:
    """Return the positions of `count` points side by side, between -0.5 and 0.5."""
    return (np.arange(count) + 0.5) / count - 0.5
