"""Accuracy, and any record, against a setting over several runs, as in most ablations."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import InputError

from ..outputs import line_styles
from .drawing import Drawing, figure, split_at_commas, spread_of
from .runs import ALGORITHM, Run
from .scores import SCORES, chosen_clients, curve, describe_clients, one_number
from .selection import (
    REPEATS,
    differing_settings,
    renamed,
    require_different_labels,
    shown,
    varying,
    with_record,
    with_scores,
    with_setting,
)

TRAFFIC = "traffic"
UNITS = {TRAFFIC: "MB a client sends and receives in a round"}
LOG_FROM = 20  # largest over smallest value from which an axis is logarithmic
Key = tuple  # values of one or several settings


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

    Points are means over seeds (runs that differ only in seeds count as more of them), bands and
    whiskers go from the lowest to the highest.

    Args:
      x: a setting, or several with commas, as names in `config.json`: a flag such as alpha, a
        hyperparameter such as top_k or feddwa.top_k (only FedDWA's runs then).
      group: further ones for the lines; "" for one line.
      score: "final", "best" or "last_tenth".
      model, split: which accuracy.
      record: shown beside it: an algorithm's record for each client, as the mean over clients in
        the last round, or "traffic", the megabytes a client sends and receives in a round.
      clients: their numbers; by default those that all runs score.

    Raises:
      InputError: unknown names, or runs at one point that differ in other settings than these.
    """
    x_names, line_names = split_at_commas(x), split_at_commas(group)
    if not x_names:
        differ = ", ".join(varying(runs)) or "no setting"
        raise InputError(f"Choose a setting with --x=NAME; these runs differ in {differ}.")
    runs = with_scores(runs, [model], split)
    for name in (*x_names, *line_names):
        runs = with_setting(runs, name)
    if record and record != TRAFFIC:
        runs = with_record(runs, record)
    rows = chosen_clients(runs, clients, model, split)
    measure = runs[0].measure
    accuracy = f"{split} {measure.axis}"
    lines: dict[Key, dict[Key, list[Run]]] = {}
    values: dict[Run, dict[str, np.ndarray]] = {}  # by metric, [S]
    for run, chosen in zip(runs, rows, strict=True):
        line, at = (_key(run, names) for names in (line_names, x_names))
        lines.setdefault(line, {}).setdefault(at, []).append(run)
        values[run] = {accuracy: one_number(curve(run, chosen, model, split), score, measure)}
        values[run] |= {record: _last(run, record)} if record else {}
    used = {
        alias for name in (*x_names, *line_names)
        for alias in (name, *(f"{r.algorithm}.{name}" for r in runs if name not in r.flags))
    }  # fmt: skip
    for at, same in (pair for line in lines.values() for pair in line.items()):
        differ = [name for name in differing_settings(same) if name not in used]
        if differ:
            raise InputError(
                f"{same[0].folder} and {same[1].folder} have the same {x} ({_text(at)})"
                f"{f' and {group}' if group else ''} but differ in {', '.join(differ)}: "
                f"name it in --group, or leave one of them out."
            )
    metrics = [accuracy, record] if record else [accuracy]
    drawing = Drawing.panels(len(metrics), 5.4 if len(metrics) == 1 else 4.6, 3.8)
    places, scale = _axis(sorted({at for line in lines.values() for at in line}, key=_order))
    if all(isinstance(value, int | float) for line in lines for value in line):
        lines = dict(sorted(lines.items()))  # words, such as algorithms, are in the runs' order
    require_different_labels(map(_text, lines))
    styles = range(len(lines))
    if line_names == [ALGORITHM]:
        styles = line_styles.numbers([str(line[0]) for line in lines])
    for k, (style, (line, points)) in enumerate(zip(styles, lines.items(), strict=True)):
        shift = 0.5 * ((k + 0.5) / len(lines) - 0.5) if scale == "places" else 0.0
        for axes, metric in zip(drawing.axes, metrics, strict=True):
            each = {
                places[at] + shift: np.concatenate([values[run][metric] for run in points[at]])
                for at in places if at in points
            }  # fmt: skip
            _draw(drawing, axes, each, style, renamed(_text(line)), scale)
    for axes, metric in zip(drawing.axes, metrics, strict=True):
        unit = accuracy if metric == accuracy else UNITS.get(metric, f"{metric} (last round)")
        plots.tidy(axes, xlabel=", ".join(x_names), ylabel=unit)
        if scale == "log":
            axes.set_xscale("log")
            axes.minorticks_off()
        if scale == "places":
            axes.set_xlim(-0.5, len(places) - 0.5)
        crowded = sum(len(_text(at)) + 2 for at in places) > 48
        look = {"rotation": 35, "ha": "right"} if crowded else {"rotation": 0, "ha": "center"}
        axes.set_xticks(list(places.values()), [_text(at) for at in places], **look)
    title = f"{model} model, {SCORES[score]}, {describe_clients(runs, rows)}"
    if len(lines) > 1:
        drawing.legend(", ".join(line_names))
    else:
        (line,) = lines
        pairs = zip(line_names, line, strict=True)
        title = ", ".join([*(f"{name} = {_text((value,))}" for name, value in pairs), title])
    repeats = [sum(len(r.seeds) for r in same) for line in lines.values() for same in line.values()]
    drawing.title(title + spread_of(repeats, "whiskers" if scale == "places" else "band"))
    others = [n for n in varying(runs, (*REPEATS, ALGORITHM)) if n not in used and "." not in n]
    if others:
        text = f"the runs also differ in {', '.join(others)}"
        drawing.figure.supxlabel(text, fontsize=8, color="0.35")
    for run in runs:
        facts = {name: shown(run.settings[name]) for name in dict.fromkeys([*x_names, *line_names])}
        facts |= {"run": str(run.folder), "algorithm": run.algorithm}
        facts |= {"model": model, "score": score}
        for metric, seeds in values[run].items():
            places_ = {"seed": run.seeds, "metric": [metric]}
            drawing.add({"value": seeds}, places_, **facts)
    return drawing


def _key(run: Run, names: Sequence[str]) -> Key:
    values = [run.settings[name] for name in names]
    return tuple(shown(value) if isinstance(value, list) else value for value in values)


def _order(key: Key) -> list:
    """Sort numbers by size, before words."""
    return [(0, v, "") if isinstance(v, int | float) else (1, 0, str(v)) for v in key]


def _text(key: Key) -> str:
    return ", ".join(map(shown, key))


def _axis(keys: list[Key]) -> tuple[dict[Key, float], str]:
    """Return each key's position, and the scale: "linear", "log", "even" or "places".

    The last two are evenly spaced, "places" without a line.
    """
    numbers = [key[0] for key in keys]
    real = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
    if len(keys[0]) > 1 or not real or len(keys) == 1:
        return {key: float(i) for i, key in enumerate(keys)}, "places"
    wide = max(numbers) > LOG_FROM * (min(n for n in numbers if n) if any(numbers) else 1)
    if wide and min(numbers) <= 0:  # zero has no place on a logarithmic axis
        return {key: float(i) for i, key in enumerate(keys)}, "even"
    return {key: float(key[0]) for key in keys}, "log" if wide else "linear"


def _draw(
    drawing: Drawing, axes, points: Mapping[float, np.ndarray], style: int, label: str, scale: str
) -> None:
    """Draw a line with its band, or points with whiskers, of values by place and seed."""
    look = plots.style(style) | {"marker": plots.marker(style), "markersize": 5}
    where, values = list(points), list(points.values())
    if scale == "places":
        look = look | {"linestyle": "none", "capsize": 3, "fmt": ""}
        drawing.points(axes, where, values, style, label, **look)
        return
    mean, low, high = np.array([(one.mean(), one.min(), one.max()) for one in values]).T
    (drawing.handles[label],) = axes.plot(where, mean, label=label, **look)
    if (high > low).any():
        axes.fill_between(where, low, high, color=look["color"], alpha=0.18, linewidth=0)


def _last(run: Run, record: str) -> np.ndarray:
    """Return a record's mean over clients in the last round, [S], or the run's traffic."""
    if record == TRAFFIC:
        sent = run.records["traffic/up_bytes"] + run.records["traffic/down_bytes"]
        present = np.maximum(run.records["participated"].sum(axis=(1, 2)), 1)
        return sent.sum(axis=(1, 2)) / present / 1e6
    return np.nanmean(run.records[record][:, -1].astype(float), axis=-1)
