"""A result for people: its headline numbers as a table, its accuracy as a picture."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl.errors import unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedjax_pfl.results import Result

FORMS = ("markdown", "plain")
HEADING = ("Setting", "Accuracy %", "± 95 %", "Worst tenth %", "Best round %", "MB up", "MB down")


def interval(values: np.ndarray) -> float | None:
    """Half the width of Student's 95 % interval of the mean, or None for a single value."""
    from scipy import stats  # slow import

    count = len(values)
    if count < 2:
        return None
    return float(stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / math.sqrt(count))


def setting_names(result: "Result") -> list[str]:
    """H names such as "top_k=3, learning_rate=0.1"; the method's alone where nothing was swept."""
    if not result.settings:
        return [result.algorithm]

    def said(name: str, value) -> str:
        return f"{name}={value:g}" if np.issubdtype(type(value), np.number) else f"{name}={value}"

    rows = zip(*result.settings.values(), strict=True)
    return [", ".join(map(said, result.settings, row)) for row in rows]


def table(result: "Result", model: str, form: str) -> str:
    """What `Result.table` returns, see there."""
    if form not in FORMS:
        raise unknown_name("form of a table", form, FORMS)
    finals, best = 100 * result.curve(model)[..., -1], 100 * np.nanmax(result.curve(model), axis=-1)
    worst, body = 100 * result.worst_decile(model), []
    for h, name in enumerate(setting_names(result)):
        half = interval(finals[:, h].astype(np.float64))
        sent = result.traffic_mb_per_client_round(h)
        numbers = [f"{finals[:, h].mean():.2f}", "-" if half is None else f"{half:.2f}"]
        numbers += [f"{values[:, h].mean():.2f}" for values in (worst, best)]
        body.append([name, *numbers, f"{sent['up']:.3g}", f"{sent['down']:.3g}"])
    rows = [list(HEADING), *body]
    return markdown(rows) if form == "markdown" else aligned(rows)


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
    """What `Result.plot` returns, see there."""
    from fedjax_pfl import plots  # matplotlib, slow

    curves = result.curve(model, split)
    lines = {name: curves[:, h] for h, name in enumerate(setting_names(result))}
    return plots.curves(lines, dict.fromkeys(lines, result.eval_rounds), model, split)
