"""Lines of scores over the values of a setting: in figures, studies and sweeps."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from fedjax_pfl.results import plots

from .drawing import Drawing

LOG_FROM = 20  # largest over smallest value from which an axis is logarithmic


def number(text: str) -> float | None:
    """Convert a text to a number, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def axis_of(texts: Sequence[str]) -> tuple[dict[str, float], str]:
    """Return the place of each value, and the scale: "linear", "log", "even" or "words".

    The last two are evenly spaced: numbers of which one has no logarithm, and words, which have no
    line between them.
    """
    numbers = {text: number(text) for text in texts}
    if len(texts) < 2 or None in numbers.values():
        return {text: float(place) for place, text in enumerate(texts)}, "words"
    known = {text: value for text, value in numbers.items() if value is not None}
    known = dict(sorted(known.items(), key=lambda pair: pair[1]))
    low, high = min(known.values()), max(known.values())
    wide = high > LOG_FROM * min((value for value in known.values() if value), default=1.0)
    if wide and low <= 0:
        return {text: float(place) for place, text in enumerate(known)}, "even"
    return known, "log" if wide else "linear"


def draw_lines(
    drawing: Drawing,
    axes: Axes,
    rows: Mapping[str, Sequence[tuple[float, np.ndarray]]],
    styles: Mapping[str, int],
    scale: str,
) -> None:
    """Draw a line for each row, with a band from the lowest to the highest seed.

    Where the places are words, means are points, side by side, with whiskers.

    Args:
      rows: the places of each row's points, with values by seed; points with NaN are left out.
      styles: number of each row's style.
      scale: of `axis_of`.
    """
    for k, (label, points) in enumerate(rows.items()):
        known = [(x, one) for x, one in points if not np.isnan(one).any()]
        if not known:
            continue
        known.sort(key=lambda point: point[0])
        where, values = np.array([x for x, _ in known]), [one for _, one in known]
        look = plots.style(styles[label]) | {"marker": plots.marker(styles[label]), "markersize": 5}
        if scale == "words":
            where = where + 0.5 * ((k + 0.5) / len(rows) - 0.5)
            look |= {"linestyle": "none", "capsize": 3, "fmt": ""}
            drawing.points(axes, where, values, styles[label], label, **look)
            continue
        mean, low, high = np.array([(one.mean(), one.min(), one.max()) for one in values]).T
        (drawing.handles[label],) = axes.plot(where, mean, label=label, **look)
        if (high > low).any():
            axes.fill_between(where, low, high, color=look["color"], alpha=0.18, linewidth=0)


def mark_places(axes: Axes, places: Mapping[str, float], scale: str) -> None:
    """Label the horizontal axis with the values."""
    if scale == "log":
        axes.set_xscale("log")
    axes.minorticks_off()
    if scale == "words":
        axes.set_xlim(-0.5, len(places) - 0.5)
    crowded = sum(len(text) + 2 for text in places) > 48
    look = {"rotation": 35, "ha": "right"} if crowded else {"rotation": 0, "ha": "center"}
    axes.set_xticks(list(places.values()), list(places), **look)
