"""Pictures say what the numbers say, and their labels don't overlap."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.text import Text

import fedjax_pfl as pfl
from fedjax_pfl.results import plots
from fedjax_pfl.utils.metric_names import ACCURACY
from tests.results.legible import assert_legible


def result(seeds=3, rounds=6, level=0.5):
    """The part of a `Result` that curves are drawn from."""
    curve = np.clip(level + np.random.default_rng(0).normal(0, 0.05, (seeds, 1, rounds)), 0, 1)
    return SimpleNamespace(
        seeds=tuple(range(seeds)),
        eval_rounds=np.arange(1, rounds + 1),
        num_settings=1,
        curve=lambda model, split: curve,
        measure=lambda: ACCURACY,
    )


def test_accuracy_curves():
    results = {"fedavg": result(level=0.4), "local": result(level=0.7), "one": result(1, 1)}
    figure = plots.accuracy_curves(results)
    axes = figure.axes[0]
    for line, (name, one) in zip(axes.lines, results.items(), strict=True):
        assert line.get_label() == name
        np.testing.assert_allclose(line.get_ydata(), 100 * one.curve("", "")[:, 0].mean(axis=0))
    assert len(axes.collections) == 2  # bands, of those with several seeds
    legend = [text.get_text().split()[0] for text in axes.get_legend().get_texts()]
    assert legend[0] == "local"  # best first
    assert_legible(figure)
    results["one"].num_settings = 2
    plots.accuracy_curves(results, setting=0)
    with pytest.raises(pfl.InputError, match=r"0\.\.1, for the settings of 'one'"):
        plots.accuracy_curves(results)


def test_a_single_score_is_a_point():
    once = np.full((2, 4), np.nan)
    once[:, -1] = 0.5
    lines = {"once": once, "always": np.full((2, 4), 0.4)}
    drawn = plots.curves(lines, dict.fromkeys(lines, np.arange(1, 5)))
    assert [line.get_marker() for line in drawn.axes[0].lines] == ["o", "None"]


def test_more_algorithms_than_colours():
    looks = [(str(one["color"]), str(one["linestyle"])) for one in map(plots.style, range(49))]
    assert len(set(looks)) == 49
    every = [tuple(map(str, one.items())) for one in map(plots.style, range(plots.STYLES))]
    assert len(set(every)) == plots.STYLES
    results = {name: result(level=0.5) for name in ("a", "b")}
    lines = plots.accuracy_curves(results, styles={"a": 8, "b": 3}).axes[0].lines
    assert [line.get_color() for line in lines] == [plots.COLOURS[1], plots.COLOURS[3]]


@pytest.mark.parametrize("n", [1, 5, pytest.param(100, marks=pytest.mark.costly)])
def test_mixing_heatmaps(n):
    matrices = np.random.default_rng(0).dirichlet(np.ones(n), size=(3, n))
    figure = plots.mixing_heatmaps(matrices, [1, 25, 50], "feddwa")
    panels = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["round 1", "round 25", "round 50"]
    for axes, matrix in zip(panels, matrices, strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), matrix)
    assert_legible(figure)


@pytest.mark.costly
def test_mixing_of_groups_and_of_one_row():
    one_row = plots.mixing_heatmaps(np.full((2, 1, 5), 0.2), [1, 2])
    assert one_row.axes[0].images[0].get_array().shape == (5, 5)
    groups = plots.mixing_heatmaps(np.ones((2, 3, 4, 4)) / 4, [1, 2], "x", ("a", "b", "head"))
    assert sum(bool(axes.images) for axes in groups.axes) >= 6
    assert_legible(groups)
    with pytest.raises(pfl.InputError, match="matrices"):
        plots.mixing_heatmaps(np.ones((2, 3, 4)), [1, 2])


def test_mixing_of_many_rounds_has_several_rows():
    figure = plots.mixing_heatmaps(np.ones((6, 2, 3, 3)) / 3, range(1, 7), "x", ("a", "b"))
    shown = [axes for axes in figure.axes if axes.images]
    assert [one.get_title() for one in shown if one.get_title()] == [
        f"round {t}" for t in range(1, 7)
    ]
    places = {
        (one.get_subplotspec().rowspan.start, one.get_subplotspec().colspan.start) for one in shown
    }
    assert places == {(r, c) for r in range(4) for c in range(4 if r < 2 else 2)}


def test_no_global_state():
    before = pyplot.get_fignums()
    plots.mixing_heatmaps(np.ones((1, 3, 3)) / 3, [1])
    assert pyplot.get_fignums() == before


def test_names_are_no_mathematics(tmp_path):
    name = "my$_$data and $\\frac"
    figure = plots.mixing_heatmaps(np.ones((1, 2, 2)) / 2, [1], name, client_names=(name, "b"))
    figure.savefig(tmp_path / "picture.png")  # Matplotlib's parser refuses the name
    texts = {text.get_text() for text in figure.findobj(Text)}
    assert name in texts
