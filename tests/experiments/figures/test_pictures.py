"""Figures: all data are in view, and legends beside it."""

import numpy as np
import pytest

from experiments.figures.__main__ import FIGURES
from experiments.figures.loading import find

# Comparisons, algorithms (all if empty) and options that the tiny runs can draw a figure from.
DRAWN = {
    "accuracy/rounds": (["main", "iid"], [], {"panel": "partition"}),
    "accuracy/clients": (["main"], [], {}),
    "accuracy/bars": (["iid"], [], {"models": "personalized,global"}),
    "accuracy/setting": (["main", "iid"], [], {"x": "partition", "record": "traffic"}),
    "accuracy/cost": (["main"], [], {}),
    "accuracy/gains": (["main"], ["local", "feddwa", "cwfedavg"], {}),
    "records/rounds": (["main"], [], {}),
    "matrices/rounds": (["main"], [], {}),
}


def test_no_figure_is_forgotten():
    assert set(DRAWN) == set(FIGURES)


@pytest.mark.parametrize("name", DRAWN)
def test_picture(name, finished):
    comparisons, algorithms, options = DRAWN[name]
    plot = FIGURES[name]
    runs = find([str(finished / one) for one in comparisons], algorithms)
    drawn = plot.draw(runs, **(dict(plot.options) | options))
    assert len(drawn.numbers) and not drawn.numbers.isna().all(axis=None)
    figure = drawn.figure
    figure.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    for legend in legends:
        extent = legend.get_window_extent()
        assert not any(extent.overlaps(box) for box in boxes), "a legend covers an axes"
        assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width + 1, "a legend is cut off"
    if figure.get_suptitle():
        extent = figure._suptitle.get_window_extent()
        assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width + 1, "the title is cut off"
    for axes in figure.axes:
        assert axes.get_xlabel() or axes.get_ylabel() or axes in figure.axes[1:]
        for at, limits in ((0, sorted(axes.get_xlim())), (1, sorted(axes.get_ylim()))):
            for line in axes.get_lines():
                if not isinstance(line.get_transform(), type(axes.transData)):
                    continue  # spans the axes, as axhline does
                values = np.asarray(line.get_xydata()[:, at], float)
                if line.get_transform() == axes.transData and np.isfinite(values).any():
                    low, high = np.nanmin(values), np.nanmax(values)
                    assert limits[0] <= low and high <= limits[1], f"{name}: data out of view"
