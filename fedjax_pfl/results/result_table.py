"""A result for readers: its main numbers as a table, its accuracy as a picture."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl.results import notes
from fedjax_pfl.utils.errors import require_name
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedjax_pfl.results.result import Result

FORMS = ("markdown", "plain")
MOST = 6  # further measures in one table


def interval(values: np.ndarray) -> float | None:
    """Half the width of Student's 95 % interval of the mean, or None for a single value."""
    from scipy import stats  # slow import

    count = len(values)
    if count < 2:
        return None
    return float(stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / math.sqrt(count))


def beyond(mean: float, half: float | None, low: float = 0.0, high: float = 100.0) -> bool:
    """Whether mean ± half extends beyond the scale, in percent, by more than rounding."""
    return half is not None and (mean - half < low - 0.005 or mean + half > high + 0.005)


def half_width(
    mean: float,
    half: float | None,
    low: float | None = None,
    high: float | None = None,
    measure: Measure = ACCURACY,
) -> str:
    """Half an interval's width as tables show it: "-" where there is none, marked * where `beyond`.

    The scale is from `low` to `high`, by default the measure's.
    """
    if half is None:
        return "-"
    given = zip(measure.range, (low, high), strict=True)
    ends = (own if end is None else end for own, end in given)
    return f"{measure.shown(half)}{'*' if beyond(mean, half, *ends) else ''}"


def interval_note(seeds: int, marked: bool) -> str | None:
    """A sentence on intervals over few seeds, or on marked ones; None if there is neither.

    Args:
      seeds: of the row with the fewest among those with an interval.
      marked: whether one is marked with *.
    """
    from scipy import stats  # slow import

    if seeds < 2 or not (marked or seeds == 2):
        return None
    free = f"{seeds - 1} degree{'' if seeds == 2 else 's'} of freedom"
    factor = stats.t.ppf(0.975, seeds - 1)
    text = (
        f"With {seeds} seeds a 95 % interval has {free} and extends {factor:.1f} standard errors "
        "to each side."
    )
    if marked:
        text += " * extends beyond the scale: such an interval says little; more seeds narrow it."
    return text


def setting_names(result: "Result") -> list[str]:
    """H names such as "top_k=3, learning_rate=0.1"; the algorithm's alone where nothing was
    swept."""
    return named_settings(result.settings) or [result.algorithm]


def named_settings(settings: Mapping[str, np.ndarray]) -> list[str]:
    """The same of the values [H] of each setting, by name; [] where there are none."""

    def said(name: str, value) -> str:
        return f"{name}={value:g}" if np.issubdtype(type(value), np.number) else f"{name}={value}"

    rows = zip(*settings.values(), strict=True)
    return [", ".join(map(said, settings, row)) for row in rows]


def table(result: "Result", model: str, form: str) -> str:
    """The table of `Result.table`, see there."""
    require_name("form of a table", form, FORMS)
    cells, below = rows(result, model)
    text = markdown(cells) if form == "markdown" else aligned(cells)
    return "\n\n".join([text, *below])


def rows(result: "Result", model: str) -> tuple[list[list[str]], list[str]]:
    """(the table's heading and rows, its notes); see `Result.table`."""
    result.require_scores()
    measure, more = result.measure(), result.measures[1:][:MOST]
    curve = measure.scale * result.curve(model)
    finals, best = curve[..., -1], measure.toward(np.nanmax(measure.toward(curve), axis=-1))
    worst, body, marked = measure.scale * result.worst_decile(model), [], False
    others = [one.scale * result.curve(model, metric=one.name)[..., -1] for one in more]
    names, settings = setting_names(result), range(result.num_settings)
    clients = [notes.scored_clients(result, h, model) for h in settings]
    differ = any(ids != clients[0] for ids in clients)
    for h, name in enumerate(names):
        mean, half = finals[:, h].mean(), interval(finals[:, h].astype(np.float64))
        marked |= beyond(mean, half, *measure.range)
        sent = result.traffic_mb_per_client_round(h)
        numbers = [measure.shown(mean), half_width(mean, half, measure=measure)]
        numbers += [notes.over(clients[h])] if differ else []
        numbers += [measure.shown(values[:, h].mean()) for values in (worst, best)]
        for one, values in zip(more, others, strict=True):
            numbers.append(one.shown(values[:, h].mean()))
        body.append([name, *numbers, f"{sent['up']:.3g}", f"{sent['down']:.3g}"])
    heading = ["Setting", measure.title, "± 95 %", *(["Mean over"] if differ else [])]
    heading += [measure.heading("Worst tenth"), measure.heading("Best round")]
    heading += [*(one.title for one in more), "MB up", "MB down"]
    below = []
    if not differ and len(clients[0]) < result.num_clients:
        who = notes.named(clients[0], notes.names_of(result))
        below.append(f"Mean over {who} of {result.num_clients}.")
    said = {name: notes.row_remarks(result, h) for h, name in enumerate(names)}
    below += notes.grouped(said)
    note = interval_note(len(result.seeds), marked)
    below += [] if note is None else [note]
    return [heading, *body], below


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A heading and rows of strings; the first column is text, the others numbers."""
    heading, *body = rows
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """The same as text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def plot(result: "Result", model: str, split: str) -> "Figure":
    """The picture of `Result.plot`, see there."""
    from fedjax_pfl.results import plots  # matplotlib, slow

    curves = result.curve(model, split)
    lines = {name: curves[:, h] for h, name in enumerate(setting_names(result))}
    return plots.curves(lines, dict.fromkeys(lines, result.eval_rounds), measure=result.measure())
