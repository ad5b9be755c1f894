"""Figures of any runs: accuracy by round, of several models, by client; records by round."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedjax_pfl.results import plots
from fedjax_pfl.results.intervals import interval
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.plotting import ticks

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


@figure("accuracy/rounds", "accuracy by round of one or several models, a line for each run")
def by_round(
    runs: Sequence[Run],
    *,
    models: str = "personalized",
    averages: str = "clients",
    split: str = "test",
    best_so_far: bool = False,
    clients: str = "",
    panel: str = "",
) -> Drawing:
    """Mean accuracy against the round; a model scored in one round only is a marker there.

    Means are over the clients that all runs score with all models.

    Args:
      models: names.
      averages: over "clients" or "samples", for all models or one for each.
      split: which samples.
      best_so_far: the best up to each round, instead.
      clients: their numbers; by default those that all runs score.
      panel: what gets its own axes: each value of a setting, "run" (by default where there are
        several models) or "model".
    """
    chosen, means = split_at_commas(models), [word.strip() for word in averages.split(",")]
    means = means * len(chosen) if len(means) == 1 else means
    each = f"one for each of {', '.join(chosen)}"
    require(len(means) == len(chosen), "--averages", averages, each)
    panel = panel or ("run" if len(chosen) > 1 else "")
    is_setting = panel not in ("", "run", "model")
    runs = with_scores(with_setting(runs, panel) if is_setting else runs, chosen, split)
    require_rounds(runs, "accuracy/rounds")
    require_different_labels(run.algorithm for run in runs)  # of one legend
    rows = dict(zip(runs, chosen_clients(runs, clients, chosen, split), strict=True))
    places = [f"{panel} = {shown(run.settings[panel])}" if is_setting else "" for run in runs]
    names: dict[Run, str] = {}
    for place in dict.fromkeys(places):
        group = [run for run, own in zip(runs, places, strict=True) if own == place]
        names |= dict(zip(group, labels(group), strict=True))
    styles = _styles(names)
    panels: dict[str, list[tuple[str, int, Run, str, str]]] = {}
    for run, place in zip(runs, places, strict=True):
        for model, mean, k in zip(chosen, means, line_styles.of_models(chosen), strict=True):
            over = f", mean over {mean}" if len(set(means)) > 1 else ""
            if panel == "run":
                title, label, style = names[run], f"{model}{over}", k
            elif panel == "model":
                title, label, style = f"{model} model{over}", names[run], styles[names[run]]
            else:
                label = names[run] if len(chosen) == 1 else f"{names[run]}, {model}"
                title, style = place, styles[names[run]]
            panels.setdefault(title, []).append((label, style, run, model, mean))
    measure, only, last = runs[0].measure, len(panels) == 1, {}
    drawing = Drawing.panels(len(panels), *((5.8, 4.0) if only else (3.6, 3.0)))
    for axes, (title, lines) in zip(drawing.axes, panels.items(), strict=True):
        for label, style, run, model, mean in lines:
            values = curve(run, rows[run], model, split, mean)
            values = measure.best_so_far(values) if best_so_far else values
            # Two models may be the same: dashes show the line beneath.
            look = {"linestyle": plots.DASHES[style % len(plots.DASHES)]} if panel == "run" else {}
            drawing.band(axes, run.result.eval_rounds, values, style, label, **look)
            last[label] = np.nanmean(values[:, -1])
            facts = {**of_run(run, names[run]), "panel": title, "model": model}
            at = {"seed": run.seeds, "round": run.result.eval_rounds}
            drawing.add({measure.column: values}, at, **facts)
        axes.set_title(title, **SMALL)
    drawing.by_round(measure.axis)
    if only:
        ranked = sorted(last, key=lambda name: -measure.toward(last[name]))
        handles = {f"{n}  {measure.brief(last[n])}": drawing.handles[n] for n in ranked}
        unit = ", %" if measure.fraction else ""
        drawing.legend(f"{'best' if best_so_far else 'last'} round{unit}", handles)
    else:
        drawing.legend()
    what = f"{' and '.join(chosen)} model, {split} samples{', best so far' if best_so_far else ''}"
    whom = describe_clients(runs, list(rows.values()), " or ".join(dict.fromkeys(means)))
    drawing.title(f"{what}, {whom}{over_seeds(runs)}")
    return drawing


def _styles(names: Mapping[Run, str]) -> dict[str, int]:
    """Return the style of each label: that of its algorithm, if it has one only."""
    algorithms: dict[str, set[str]] = {}
    for run, name in names.items():
        algorithms.setdefault(name, set()).add(run.algorithm)
    single = [next(iter(one)) if len(one) == 1 else "" for one in algorithms.values()]
    return dict(zip(algorithms, line_styles.numbers(single), strict=True))


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
        axes.axhline(np.nanmean(mean), color=plots.colour(style), **line)  # some departed
        facts = {**of_run(run, name), "model": model, "score": score}
        drawing.add(
            {measure.column: np.array(each).T}, {"seed": run.seeds, "client": scored}, **facts
        )
    plots.tidy(axes, xlabel="client", ylabel=measure.axis, xlim=(-0.5, most - 0.5))
    ticks(axes.xaxis, most, 20)
    drawing.legend()
    drawing.title(
        f"{model} model, {split} samples, {SCORES[score]}; whiskers: lowest and highest seed, "
        "dashed: mean over clients"
    )
    return drawing


@figure("accuracy/bars", "accuracy of each run and model as a bar, with its interval over seeds")
def bars(
    runs: Sequence[Run],
    *,
    models: str = "personalized",
    split: str = "test",
    score: str = "final",
    average: str = "clients",
    clients: str = "",
) -> Drawing:
    """Mean accuracy over seeds, a bar for each run and model; whiskers are 95 % intervals
    (Student's t).

    A run with one seed has no whisker. Means are over the clients that all runs score with all
    models.

    Args:
      models: names.
      split, average, clients: which accuracy.
      score: "final", "best" or "last_tenth".
    """
    several = split_at_commas(models)
    runs = with_scores(runs, several, split)
    names, chosen = labels(runs), chosen_clients(runs, clients, several, split)
    own = line_styles.distinct_colors([style for *_, style in with_styles(runs)])
    count, measure = len(several), runs[0].measure
    drawing = Drawing(1.6 + 0.9 * len(runs) * max(1, count / 2), 3.8)
    (axes,) = drawing.axes
    for k, (run, name, rows) in enumerate(zip(runs, names, chosen, strict=True)):
        for m, (model, style) in enumerate(
            zip(several, line_styles.of_models(several), strict=True)
        ):
            values = one_number(curve(run, rows, model, split, average), score, measure)
            half, x = interval(values), k + 0.7 * ((m + 0.5) / count - 0.5)
            look = {"color": plots.colour(own[k] if count == 1 else style), "zorder": 2}
            drawing.handles[model] = axes.bar(x, values.mean(), width=0.7 / count, **look)
            if half is not None:
                axes.errorbar(x, values.mean(), half, color="0.2", capsize=4, zorder=3)
            facts = {**of_run(run, name), "model": model, "seeds": len(values)}
            row = {**facts, measure.column: values.mean(), "ci95_half_width": half}
            drawing.tables.append(pd.DataFrame([row]))
    axes.set_xticks(range(len(runs)), names)
    if sum(map(len, names)) > 10 * len(names):
        axes.tick_params(axis="x", rotation=30)
    plots.tidy(axes, ylabel=measure.axis)
    axes.grid(axis="x", visible=False)
    if count > 1:
        drawing.legend("model")
    text = f"{' and '.join(several)} model, {split} samples, {SCORES[score]}"
    text = f"{text}, {describe_clients(runs, chosen, average)}"
    drawing.title(f"{text}; whiskers: 95 % interval over seeds")
    return drawing


@figure("records/rounds", "a record of the clients by round: self-weights of mixing algorithms")
def of_record(runs: Sequence[Run], *, record: str = "self_weight") -> Drawing:
    """A record against the round, mean over the round's members; one line for each run.

    Args:
      record: its name in the result's `clients`. With "self_weight" a line near 1 is an algorithm
        whose clients hardly mix any more.
    """
    runs, drawing = with_record(runs, record), Drawing(5.8, 4.0)
    for run, name, style in with_styles(runs):
        values = mean_over_clients(run.recorded(record))  # [S, T]
        rounds = np.arange(1, run.result.rounds + 1)
        drawing.band(drawing.axes[0], rounds, values, style, name)
        places = {"seed": run.seeds, "round": rounds}
        drawing.add({"value": values}, places, **of_run(run, name), record=record)
    drawing.by_round(record)
    drawing.legend()
    drawing.title(f"{record}, mean over the clients that took part{over_seeds(runs)}")
    return drawing


def _shifts(count: int) -> np.ndarray:
    """Return the positions of `count` points side by side, between -0.5 and 0.5."""
    return (np.arange(count) + 0.5) / count - 0.5
