"""Accuracy, and any record, against a setting over several runs, as in most ablations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_pfl.utils.errors import InputError

from ..outputs import looks
from . import drawing
from .drawing import Drawing, figure, long_form
from .runs import ALGORITHM, Run
from .scores import SCORES, chosen_clients, curve, one_number, who
from .selection import REPEATS, apart, renamed, setting, shown, varying, with_record, with_scores

TRAFFIC = "traffic"
LOG_FROM = 20  # largest over smallest value from which an axis is logarithmic


@figure("accuracy/setting", "accuracy against any setting of several runs, lines by another")
def against_setting(
    runs: Sequence[Run],
    *,
    x: str = "",
    group: str = ALGORITHM,
    score: str = "final",
    model: str = "personalized",
    split: str = "test",
    record: str = "",
    clients: str = "",
) -> Drawing:
    """Accuracy against a setting: one point for each run, one line for each value of another.

    Points are means over seeds (runs that differ in seeds alone count as more of them), bands and
    whiskers go from the lowest to the highest.

    Args:
      x: a setting, or several with commas, as names in `config.json`: a flag such as alpha, a
        hyperparameter such as top_k or feddwa.top_k (only FedDWA's runs then).
      group: likewise; "" for one line.
      score: "final", "best" or "last_tenth".
      model, split: which accuracy.
      record: shown beside it: an algorithm's record for each client, as the mean over clients in
        the last round, or "traffic", the megabytes a client sends and receives in a round.
      clients: their numbers; by default those that all runs score.

    Raises:
      InputError: unknown names, or runs at one point that differ in other settings than these.
    """
    axes_names, line_names = _names(x), _names(group)
    if not axes_names:
        differ = ", ".join(varying(runs)) or "no setting"
        raise InputError(f"Choose a setting with --x=NAME; these runs differ in {differ}.")
    runs = with_scores(runs, [model], split)
    for name in (*axes_names, *line_names):
        runs = setting(runs, name)
    if record and record != TRAFFIC:
        runs = with_record(runs, record)
    rows = chosen_clients(runs, clients, model, split)
    points: dict[tuple, dict[tuple, list[Run]]] = {}
    values: dict[Run, dict[str, np.ndarray]] = {}
    label = f"{split} {runs[0].measure.axis}"
    for run, mine in zip(runs, rows, strict=True):
        key, at = (_key(run, names) for names in (line_names, axes_names))
        points.setdefault(key, {}).setdefault(at, []).append(run)
        values[run] = {label: one_number(curve(run, mine, model, split), score, run.measure)}
        if record:
            values[run][record] = _last(run, record)
    used = {name for full in (*axes_names, *line_names) for name in _aliases(runs, full)}
    for line in points.values():
        for at, same in line.items():
            differ = [n for n in apart(same) if n not in used]
            if differ:
                raise InputError(
                    f"{same[0].folder} and {same[1].folder} have the same {x} ({_text(at)})"
                    f"{f' and {group}' if group else ''} but differ in {', '.join(differ)}: "
                    f"name it in --group, or leave one of them out."
                )
    figures = len(values[runs[0]])
    chart, grid = drawing.panels(figures, 4.6 if figures > 1 else 5.4, 3.8)
    places, scale = _axis(sorted({at for line in points.values() for at in line}, key=_order))
    lines = []
    ordered = list(points.items())  # words, such as algorithms, in the order of the runs
    if all(isinstance(value, int | float) for key in points for value in key):
        ordered.sort()
    algorithms = line_names == [ALGORITHM] or tuple(line_names) == (ALGORITHM,)
    styles = (
        looks.numbers([str(key[0]) for key, _ in ordered]) if algorithms else range(len(ordered))
    )
    for k, (key, line) in enumerate(ordered):
        shift = 0.0 if scale != "places" else 0.5 * ((k + 0.5) / len(points) - 0.5)
        for axes, metric in zip(grid, values[runs[0]], strict=True):
            drawn = _draw(axes, line, places, shift, values, metric, styles[k], scale)
        lines.append((drawn, renamed(_text(key))))
    for axes, metric in zip(grid, values[runs[0]], strict=True):
        ylabel = metric if metric == label else _unit(metric)
        drawing.tidy(axes, xlabel=", ".join(axes_names), ylabel=ylabel)
        if scale == "log":
            axes.set_xscale("log")
            axes.minorticks_off()
        if scale == "places":
            axes.set_xlim(-0.5, len(places) - 0.5)
        crowded = sum(len(_text(at)) + 2 for at in places) > 48
        axes.set_xticks(
            list(places.values()), [_text(at) for at in places],
            rotation=35 if crowded else 0, ha="right" if crowded else "center",
        )  # fmt: skip
    if len(lines) > 1:
        handles, texts = zip(*lines, strict=True)
        drawing.legend(chart, handles, ", ".join(line_names), texts)
    repeats = max(
        sum(len(r.seeds) for r in same) for line in points.values() for same in line.values()
    )
    only = [
        f"{name} = {_text((value,))}" for name, value in zip(line_names, ordered[0][0], strict=True)
    ]
    title = f"{model} model, {SCORES[score]}, {who(runs, rows)}"
    title = ", ".join([*only, title]) if len(lines) == 1 else title
    spread = drawing.spread_of(repeats, "whiskers" if scale == "places" else "band")
    drawing.title(chart, title + spread)
    others = [
        n for n in varying(runs, REPEATS) if n not in used and "." not in n and n != ALGORITHM
    ]
    if others:
        chart.supxlabel(f"the runs also differ in {', '.join(others)}", fontsize=8, color="0.35")
    columns = (*axes_names, *(n for n in line_names if n not in axes_names))
    table = []
    for run in runs:
        facts = {name: shown(run.settings[name]) for name in columns}
        facts |= {"run": str(run.folder), "algorithm": run.algorithm}
        facts |= {"model": model, "score": score}
        for metric, each in values[run].items():
            places = {"seed": run.seeds, "metric": [metric]}
            table.append(long_form({"value": each}, places, **facts))
    return Drawing.of(chart, table)


def _names(words: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))


def _aliases(runs: Sequence[Run], name: str) -> set[str]:
    """The name, and the full names of its hyperparameter."""
    return {name, *(f"{run.algorithm}.{name}" for run in runs if name not in run.flags)}


def _key(run: Run, names: Sequence[str]) -> tuple:
    values = [run.settings[name] for name in names]
    return tuple(shown(value) if isinstance(value, list) else value for value in values)


def _order(key: tuple) -> list:
    """Numbers by size, before words."""
    return [(0, v, "") if isinstance(v, int | float) else (1, 0, str(v)) for v in key]


def _text(key: tuple) -> str:
    return ", ".join(map(shown, key))


def _axis(keys: list[tuple]) -> tuple[dict[tuple, float], str]:
    """Each key's position, and the scale: "linear", "log", or evenly spaced "places"."""
    numbers = [key[0] for key in keys]
    real = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
    if len(keys[0]) > 1 or not real or len(keys) == 1:
        return {key: float(i) for i, key in enumerate(keys)}, "places"
    wide = max(numbers) > LOG_FROM * (min(n for n in numbers if n) if any(numbers) else 1)
    if wide and min(numbers) <= 0:  # zero has no place on a logarithmic axis
        return {key: float(i) for i, key in enumerate(keys)}, "even"
    return {key: float(key[0]) for key in keys}, "log" if wide else "linear"


def _draw(
    axes, line: Mapping[tuple, list[Run]], places: Mapping[tuple, float], shift: float,
    values: Mapping[Run, Mapping[str, np.ndarray]], metric: str, k: int, scale: str,
) -> Any:  # fmt: skip
    """One line with its band, or points with whiskers; returns its handle for the legend."""
    keys = [at for at in places if at in line]
    where = np.array([places[at] + shift for at in keys])
    each = [np.concatenate([values[run][metric] for run in line[at]]) for at in keys]
    mean, low, high = (np.array([fn(e) for e in each]) for fn in (np.mean, np.min, np.max))
    look = drawing.style(k) | {"marker": drawing.marker(k), "markersize": 5}
    if scale == "places":
        look["linestyle"] = "none"
        return axes.errorbar(where, mean, yerr=(mean - low, high - mean), capsize=3, **look)
    (drawn,) = axes.plot(where, mean, **look)
    if (high > low).any():
        axes.fill_between(where, low, high, color=drawn.get_color(), alpha=0.18, linewidth=0)
    return drawn


def _last(run: Run, record: str) -> np.ndarray:
    """A record's mean over clients in the last round [S], or the traffic of the whole run."""
    if record == TRAFFIC:
        sent = run.record("traffic/up_bytes") + run.record("traffic/down_bytes")
        present = np.maximum(run.record("participated").sum(axis=(1, 2)), 1)
        return sent.sum(axis=(1, 2)) / present / 1e6
    return np.nanmean(run.record(record)[:, -1].astype(float), axis=-1)


def _unit(metric: str) -> str:
    if metric == TRAFFIC:
        return "MB a client sends and receives in a round"
    return f"{metric} (last round)"
