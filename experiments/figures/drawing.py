"""Figures with their numbers: the catalogue, grids of axes, legends and titles."""

import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedjax_pfl.results import plots
from fedjax_pfl.utils.conversions import keyword_defaults
from fedjax_pfl.utils.errors import InputError

SMALL = {"fontsize": 10}  # of titles


class Drawing:
    """A figure and its numbers.

    Args:
      width, height: inches.
      counts: the number of axes in each row.
      **options: of `Figure.subplots`.

    Attributes:
      figure: not written yet.
      rows: the axes of each row; axes: all of them.
      handles: what the legend shows, by label.
      tables: parts of `numbers`.
    """

    def __init__(self, width: float, height: float, counts: Sequence[int] = (1,), **options: Any):
        self.figure = plots.canvas(width, height)
        grid = self.figure.subplots(len(counts), max(counts), squeeze=False, **options)
        self.rows = [list(row[:count]) for row, count in zip(grid, counts, strict=True)]
        self.axes = [axes for row in self.rows for axes in row]
        for axes in set(grid.flat) - set(self.axes):
            axes.remove()
        self.handles: dict[str, Any] = {}
        self.tables: list[pd.DataFrame] = []

    @classmethod
    def panels(
        cls, count: int, width: float, height: float, columns: int = 3, **options: Any
    ) -> "Drawing":
        """Make a figure of `count` axes of `width` x `height` inches, row by row."""
        columns = 2 if count == 4 and columns == 3 else min(columns, count)
        counts = [min(columns, count - first) for first in range(0, count, columns)]
        return cls(width * columns, height * len(counts) + 0.4, counts, **options)

    @property
    def numbers(self) -> pd.DataFrame:
        """One row for each number drawn."""
        return pd.concat(self.tables, ignore_index=True)

    def add(self, values: Mapping[str, Any], axes: Mapping[str, Iterable], **facts: Any) -> None:
        """Add arrays to the numbers, a row for each entry; those that are not finite are omitted.

        Args:
          values: arrays of one shape by the name of their column.
          axes: for each axis its name and the labels of its entries.
          **facts: columns of one value, which come first.
        """
        index = pd.MultiIndex.from_product(list(axes.values()), names=list(axes))
        columns = {name: np.asarray(array, float).ravel() for name, array in values.items()}
        frame = pd.DataFrame(columns, index).reset_index()
        known = np.isfinite(frame[list(values)]).all(axis=1)
        self.tables.append(frame.loc[known].assign(**facts).loc[:, [*facts, *axes, *values]])

    def band(
        self, axes: Axes, x: Any, values: np.ndarray, k: int | None, label: str, **look: Any
    ) -> None:
        """Draw a line with its band over seeds, see `plots.band`."""
        self.handles[label] = plots.band(axes, x, values, k, label, **look)

    def points(
        self, axes: Axes, where: Any, values: Sequence[np.ndarray], k: int, label: str,
        across: bool = False, **look: Any,
    ) -> np.ndarray:  # fmt: skip
        """Draw means over seeds with whiskers from the lowest to the highest; return the means.

        Args:
          where: places of the points along x, or along y with `across`.
          values: of each point by seed.
          k: style of the points.
          **look: of `Axes.errorbar`.
        """
        mean, low, high = np.array([(one.mean(), one.min(), one.max()) for one in values]).T
        look = {"fmt": plots.marker(k), "color": plots.colour(k), "label": label} | look
        # The mean of equal values may be rounded beyond them.
        look["xerr" if across else "yerr"] = np.maximum((mean - low, high - mean), 0)
        places = (mean, where) if across else (where, mean)
        self.handles[label] = axes.errorbar(*places, **look)
        return mean

    def by_round(self, ylabel: str) -> None:
        """Label x with whole rounds on all axes, and y on the leftmost ones."""
        for axes in self.axes:
            plots.tidy(axes, ylabel=ylabel if axes.get_subplotspec().is_first_col() else "")
            axes.set_xlabel("round")
            axes.xaxis.get_major_locator().set_params(integer=True)

    def legend(self, title: str | None = None, handles: Mapping[str, Any] | None = None) -> None:
        """Add a legend beside the axes and enlarge the figure for it."""
        handles = self.handles if handles is None else handles
        longest = max(len(line) for text in (title or "", *handles) for line in text.split("\n"))
        self.figure.set_figwidth(self.figure.get_figwidth() + 0.5 + 0.075 * longest)
        self.figure.legend(
            list(handles.values()), list(handles), title=title, loc="outside right center",
            frameon=False, alignment="left", fontsize=9, title_fontsize=9,
        )  # fmt: skip

    def colorbar(self, image: Any, axes: Any, label: str) -> None:
        """Add a colour scale beside axes."""
        self.figure.colorbar(image, ax=axes, label=label, pad=0.02, fraction=0.05)

    def title(self, text: str) -> None:
        """Set a title in lines of similar length that fit the figure's width."""
        most = int(13 * self.figure.get_figwidth())
        even = -(-len(text) // -(-len(text) // most))
        widths = (even + spare for spare in range(0, most, 4))
        fitting = (textwrap.wrap(text, min(width, most)) for width in widths)
        fewest = len(textwrap.wrap(text, most))
        lines = next(lines for lines in fitting if len(lines) == fewest)
        self.figure.suptitle("\n".join(lines), fontsize=10)


@dataclass(frozen=True)
class Plot:
    """A figure of the catalogue.

    Attributes:
      draw: `draw(runs, **options) -> Drawing`.
      shows: one line.
      options: every option and its default.
    """

    draw: Callable[..., Drawing]
    shows: str
    options: Mapping[str, Any]


FIGURES: dict[str, Plot] = {}


def figure(name: str, shows: str) -> Callable:
    """Decorate `draw(runs, *, options)` as a figure of the catalogue."""

    def register(draw: Callable[..., Drawing]) -> Callable[..., Drawing]:
        FIGURES[name] = Plot(draw, shows, keyword_defaults(draw))
        return draw

    return register


def of_run(run, label: str) -> dict[str, str]:
    """Return the first columns of a run's numbers."""
    return {"run": str(run.folder), "label": label}


def split_at_commas(text: str) -> list[str]:
    """Split an option at its commas, without repetitions."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def require_rounds(runs: Sequence, name: str) -> None:
    """Raise `InputError` if no run has two scored rounds, which a curve needs."""
    if all(len(run.result.eval_rounds) < 2 for run in runs):
        raise InputError(
            f"{name} would be a picture of one point, as these runs scored one round: run with a "
            "smaller --eval_every or more --rounds, or draw accuracy/clients."
        )


def over_seeds(runs: Sequence, mark: str = "band") -> str:
    """Return the end of a title about lines or points of several seeds."""
    return spread_of([len(run.seeds) for run in runs], mark)


def spread_of(counts: Collection[int], mark: str = "band") -> str:
    """Return the end of a title about lines or points of these numbers of seeds."""
    if max(counts) < 2:
        return ""
    return f"; mean of {extent(counts)} seeds, {mark} from lowest to highest"


def extent(counts: Collection[int]) -> str:
    """Return words such as "3", or "2 to 3"."""
    low, high = min(counts), max(counts)
    return f"{high}" if low == high else f"{low} to {high}"
