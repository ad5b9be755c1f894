"""Confidence intervals over seeds, and their text in tables."""

import math
from collections.abc import Iterable

import numpy as np

from fedjax_pfl.results.table import Column
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

TITLE = "± 95 %"


def interval(values: np.ndarray) -> float | None:
    """Return half the width of Student's 95 % interval of the mean; None for a single value."""
    from scipy import stats  # slow import

    count = len(values)
    if count < 2:
        return None
    return float(stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / math.sqrt(count))


def beyond(mean: float, half: float | None, low: float = 0.0, high: float = 100.0) -> bool:
    """Return whether mean ± half extends beyond the scale by more than rounding.

    Scales with two ends are in percent, others have numbers of any size.
    """
    if half is None:
        return False
    rounding = 0.005 if math.isfinite(high - low) else 5e-4 * half
    return mean - half < low - rounding or mean + half > high + rounding


def half_width(
    mean: float,
    half: float | None,
    low: float | None = None,
    high: float | None = None,
    measure: Measure = ACCURACY,
) -> str:
    """Format half an interval's width: "-" for None, marked * where `beyond`.

    The scale is from `low` to `high`, by default the measure's.
    """
    if half is None:
        return "-"
    limits = zip(measure.range, (low, high), strict=True)
    ends = (default if end is None else end for default, end in limits)
    return f"{measure.shown(half)}{'*' if beyond(mean, half, *ends) else ''}"


def mean_with_interval(values: np.ndarray, measure: Measure = ACCURACY) -> str:
    """Format a cell such as "81.20 ± 1.35" from one value per seed; no interval for one seed."""
    mean, half = values.mean(), interval(values)
    width = "" if half is None else f" ± {half_width(mean, half, measure=measure)}"
    return measure.shown(mean) + width


def half_widths(
    key: str, of: str, measure: Measure, scale: float = 1.0, name: str | None = None
) -> Column:
    """Return a column of half widths of the means under the key `of`, both times `scale`."""

    def text(row) -> str:
        return half_width(scale * row[of], scale * row[key], measure=measure)

    return Column(key, TITLE, text, name)


def interval_note(seeds: int, marked: bool) -> str | None:
    """Return a sentence on intervals over few seeds or marked ones; None without either.

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
        text += (
            " * extends beyond the scale: such an interval is uninformative; more seeds narrow it."
        )
    return text


def interval_notes(scores: Iterable[np.ndarray], low: float = 0.0, high: float = 100.0) -> list:
    """Return the note below a table with these scores by seed, on a scale from low to high."""
    several = [values for values in scores if len(values) > 1]
    marked = any(beyond(values.mean(), interval(values), low, high) for values in several)
    note = interval_note(min(map(len, several), default=0), marked)
    return [] if note is None else [note]
