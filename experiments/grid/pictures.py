"""Pictures of a sweep: lines over one setting, or over one for each value of another."""

from typing import Any

from matplotlib.figure import Figure

from fedjax_pfl.results import plots
from fedjax_pfl.utils.metric_names import Measure

from ..figures.drawing import Drawing, spread_of
from ..figures.lines import axis_of, draw_lines, mark_places, number


def picture(numbers: Any, algorithm: str, measure: Measure) -> Figure | None:
    """Draw an algorithm's validation and test accuracy over one name, or validation over two.

    Args:
      numbers: its rows of `ranking.frame`.

    Returns:
      The figure; None for any other number of names.
    """
    columns = [*numbers.columns]
    seed = columns.index("seed")
    validation, test = columns[seed + 1 : seed + 3]  # then the trained models', if they are scored
    names = [name for name in columns[1:seed] if numbers[name].nunique() > 1]
    if not 1 <= len(names) <= 2:
        return None
    # Numbers make the axis, words the lines.
    x, *others = sorted(names, key=lambda name: None in map(number, numbers[name].dropna()))
    parts = {"validation": (numbers, validation), "test": (numbers, test)}
    if others:
        groups = numbers.groupby(others[0], sort=False)
        parts = {f"{others[0]}={value}": (part, validation) for value, part in groups}
    places, scale = axis_of(numbers[x].unique().tolist())
    drawing = Drawing(5.4, 3.8)
    (axes,) = drawing.axes
    rows = {
        label: [(places[value], one.to_numpy()) for value, one in part.groupby(x)[column]]
        for label, (part, column) in parts.items()
    }
    draw_lines(drawing, axes, rows, {label: k for k, label in enumerate(rows)}, scale)
    plots.tidy(axes, xlabel=x, ylabel=f"validation {measure.axis}" if others else measure.axis)
    mark_places(axes, places, scale)
    drawing.legend()
    drawing.title(f"{algorithm}: mean over clients{spread_of([numbers['seed'].nunique()])}")
    return drawing.figure
