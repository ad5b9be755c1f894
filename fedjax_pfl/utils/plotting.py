"""Matplotlib figures that need no display and no global state, with heat maps and ticks."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis, YAxis
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text

# Okabe and Ito's colours, distinct for any colour vision; yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
HEAT = "YlGnBu"  # zeros are masked and stay white
# The same without the palest colours: small values must differ from zeros, which are white.
SHADES = ListedColormap(colormaps[HEAT](np.linspace(0.12, 1.0, 256)))
DPI = 150


class Picture(Figure):
    """A figure that shows texts literally: a `$` in a name begins no mathematics."""

    def draw(self, renderer: RendererBase) -> None:
        with rc_context({"text.parse_math": False}):  # ticks make texts while they are drawn
            for text in self.findobj(Text):
                if text.get_wrap():  # whose width Matplotlib takes as that of mathematics
                    text.set_text(re.sub(r"(?<!\\)\$", r"\\$", text.get_text()))
                else:
                    text.set_parse_math(False)
            super().draw(renderer)


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure with a size in inches."""
    return Picture(figsize=(width, height), dpi=DPI, layout="constrained")


def heat(
    axes: Axes,
    values: np.ndarray,
    norm: Normalize,
    cmap: str | Colormap = SHADES,
    blank: float | None = 0.0,
    **options: Any,
) -> QuadMesh:
    """Draw a matrix [rows, columns] as a mesh in which every cell is visible.

    Cells of the value `blank`, and NaN, stay white; `options` are those of `Axes.pcolormesh`.
    """
    values = np.ma.masked_invalid(np.asarray(values, float))
    values = values if blank is None else np.ma.masked_equal(values, blank)
    rows, columns = values.shape
    image = axes.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, values, cmap=cmap, norm=norm,
        rasterized=True, **options,
    )  # fmt: skip
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    return image


def ticks(axis: Axis, count: int, most: float = 10, names: Sequence[str] | None = None) -> None:
    """Label an axis with whole numbers from 0 to `count`, or names.

    At most `most` of them, so that labels never touch.
    """
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, max(count, 1))
    step = next(s for s in steps if count / s <= most or s == steps[-1])
    where = range(0, count, step)
    axis.set_ticks(where, [str(i if names is None else names[i]) for i in where])


def client_ticks(
    axis: XAxis | YAxis, count: int, most: float = 10, names: Sequence[str] | None = None
) -> None:
    """Label an axis with clients, by their names if any."""
    ticks(axis, count, most, names or None)
    if names and axis.axis_name == "x":
        for label in axis.get_ticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")
