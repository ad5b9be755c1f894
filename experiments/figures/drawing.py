"""Shared by all figures: the registry, styles, axes, legends and ticks."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedjax_pfl.results.plots import COLOURS as COLOURS
from fedjax_pfl.results.plots import DASHES as DASHES
from fedjax_pfl.results.plots import GREY as GREY
from fedjax_pfl.results.plots import MARKERS as MARKERS
from fedjax_pfl.results.plots import SHADES as SHADES
from fedjax_pfl.results.plots import band as band
from fedjax_pfl.results.plots import canvas as canvas
from fedjax_pfl.results.plots import client_ticks as client_ticks
from fedjax_pfl.results.plots import colour as colour
from fedjax_pfl.results.plots import heat as heat
from fedjax_pfl.results.plots import marker as marker
from fedjax_pfl.results.plots import style as style
from fedjax_pfl.results.plots import ticks as ticks
from fedjax_pfl.results.plots import tidy as tidy
from fedjax_pfl.utils.conversions import keyword_defaults
from fedjax_pfl.utils.errors import InputError, require, unknown_name

from ..outputs import looks

TIE = "0.45"  # of what is neither better nor worse


@dataclass(frozen=True)
class Drawing:
    """A figure and its numbers.

    Attributes:
      figure: not written yet.
      numbers: one row for each number drawn, see `long_form`.
    """

    figure: Figure
    numbers: pd.DataFrame

    @classmethod
    def of(cls, figure: Figure, parts: Sequence[pd.DataFrame]) -> "Drawing":
        """A figure with the numbers of its parts."""
        return cls(figure, pd.concat(parts, ignore_index=True))


def long_form(
    values: Mapping[str, Any], axes: Mapping[str, Iterable], **facts: Any
) -> pd.DataFrame:
    """Arrays as a table with a row for each entry; entries that are not finite are left out.

    Args:
      values: arrays of one shape by the name of their column.
      axes: for each axis its name and the labels of its entries.
      **facts: columns of one value, which come first.
    """
    index = pd.MultiIndex.from_product(list(axes.values()), names=list(axes))
    columns = {name: np.asarray(array, float).ravel() for name, array in values.items()}
    frame = pd.DataFrame(columns, index).reset_index()
    known = np.isfinite(frame[list(values)]).all(axis=1)
    return frame.loc[known].assign(**facts).loc[:, [*facts, *axes, *values]]


def of_run(run, label: str) -> dict[str, str]:
    """The first columns of a run's numbers."""
    return {"run": str(run.folder), "label": label}


@dataclass(frozen=True)
class Plot:
    """A figure of the catalogue.

    Attributes:
      draw: `draw(runs, **options) -> Drawing`.
      shows: one line, with the paper's figure or table.
      options: every option and its default.
      needs_runs: whether it draws finished runs at all.
    """

    draw: Callable[..., Drawing]
    shows: str
    options: Mapping[str, Any]
    needs_runs: bool = True


FIGURES: dict[str, Plot] = {}


def figure(name: str, shows: str, draw: Callable | None = None, needs_runs: bool = True, **presets):
    """Registers `draw(runs, *, options)`; `presets` are other defaults of its options.

    Without `draw`, a decorator.
    """

    def register(draw):
        options = keyword_defaults(draw) | presets
        FIGURES[name] = Plot(draw, shows, options, needs_runs)
        return draw

    return register if draw is None else register(draw)


def panels(
    count: int, width: float, height: float, columns: int = 3, **options
) -> tuple[Figure, list]:
    """A figure of `count` axes of `width` x `height` inches, row by row.

    `options` are those of `Figure.subplots`.
    """
    columns = 2 if count == 4 and columns == 3 else min(columns, count)
    rows = -(-count // columns)
    chart = canvas(width * columns, height * rows + 0.4)
    grid = chart.subplots(rows, columns, squeeze=False, **options)
    for axes in grid.flat[count:]:
        axes.remove()
    return chart, list(grid.flat[:count])


def leftmost(axes) -> bool:
    """Whether the axes are the leftmost of their row and so carry the row's label."""
    return axes.get_subplotspec().is_first_col()


def round_axis(axes) -> None:
    """Whole numbers on the axis of rounds."""
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)


def legend(chart: Figure, lines: Sequence, title: str | None = None, labels=None) -> None:
    """Beside the axes, where it covers nothing; the figure grows for it."""
    labels = [line.get_label() for line in lines] if labels is None else labels
    longest = max(len(line) for text in (title or "", *labels) for line in text.split("\n"))
    chart.set_figwidth(chart.get_figwidth() + 0.5 + 0.075 * longest)
    chart.legend(
        lines, labels, title=title, loc="outside right center", frameon=False, alignment="left",
        fontsize=9, title_fontsize=9,
    )  # fmt: skip


def colorbar(chart: Figure, image, axes, label: str) -> None:
    chart.colorbar(image, ax=axes, label=label, pad=0.02, fraction=0.05)


def title(chart: Figure, text: str) -> None:
    """A title over the whole figure, in lines of similar length that fit its width."""
    most = int(13 * chart.get_figwidth())
    even = -(-len(text) // -(-len(text) // most))
    widths = (even + spare for spare in range(0, most, 4))
    fitting = (textwrap.wrap(text, min(width, most)) for width in widths)
    fewest = len(textwrap.wrap(text, most))
    chart.suptitle("\n".join(next(w for w in fitting if len(w) == fewest)), fontsize=10)


def require_rounds(runs: Sequence, name: str) -> None:
    """Raises `InputError` where no run has two scored rounds: a picture of one point."""
    if all(len(run.eval_rounds) < 2 for run in runs):
        raise InputError(
            f"{name} would be a picture of one point, as these runs scored one round: run with a "
            "smaller --eval_every or more --rounds, or draw accuracy/clients."
        )


def over_seeds(runs: Sequence, mark: str = "band") -> str:
    """The end of a title, on lines or points of several seeds."""
    return spread_of(max(len(run.seeds) for run in runs), mark)


def spread_of(count: int, mark: str = "band") -> str:
    """The same for a number of seeds."""
    return f"; mean of {count} seeds, {mark} from lowest to highest" if count > 1 else ""


def run_lines(runs: Sequence, names: Sequence[str], curves: Sequence, size, **labels):
    """A figure with one line for each run, in the style of its algorithm.

    Args:
      runs, names: the runs and their labels.
      curves: for each run the places along x and values [S, X].
      size: width and height in inches.
      **labels: of the axes.

    Returns:
      The figure and its axes.
    """
    chart = canvas(*size)
    axes = chart.add_subplot()
    styles = looks.numbers([run.algorithm for run in runs])
    lines = [
        band(axes, x, values, k, name)
        for k, name, (x, values) in zip(styles, names, curves, strict=True)
    ]
    tidy(axes, **labels)
    legend(chart, lines)
    return chart, axes


def check_choice(name: str, given: str, allowed: Sequence[str]) -> None:
    """Raises `InputError` unless an option is one of the words allowed."""
    if given not in allowed:
        raise unknown_name(f"value of --{name}", given, allowed)


def check_lengths(name: str, given: Sequence, wanted: Sequence) -> None:
    """Raises `InputError` unless an option has one entry for each of `wanted`."""
    allowed = f"one for each of {', '.join(map(str, wanted))}"
    require(len(given) == len(wanted), f"--{name}", ",".join(map(str, given)), allowed)
