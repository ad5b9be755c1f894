"""Pictures of partitions: right numbers, labels that don't overlap, at 5 to 1,000 clients."""

import numpy as np
import pytest
from matplotlib import pyplot

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions import partition_plots as plots
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.results.legible import assert_legible

DATA = {
    c: dataset_from_arrays("toy", np.zeros((6000, 1)), np.arange(6000) % c, num_classes=c)
    for c in (2, 10, 100)
}


@pytest.mark.parametrize(
    ("clients", "classes"),
    [
        (1, 2),
        (5, 10),
        *(pytest.param(*sizes, marks=pytest.mark.costly) for sizes in ((100, 100), (1000, 2))),
    ],
)
def test_heatmap(clients, classes):
    dataset = DATA[classes]
    p = make_partition("dirichlet_uncapped", dataset, clients, 0, min_size=4)
    figure = plots.heatmap(p, dataset.labels, classes)
    bars, heat = figure.axes[:2]
    drawn = np.ma.filled(heat.collections[0].get_array(), 0).reshape(classes, clients)
    np.testing.assert_array_equal(drawn.T, p.class_counts(dataset.labels, classes))
    if clients > 400:  # one outline for each split
        heights = [
            x for one in bars.patches for x in one.get_data().values - one.get_data().baseline
        ]
        assert len(bars.patches) == 2
    else:
        heights = [bar.get_height() for bar in bars.patches]
    np.testing.assert_array_equal(heights, [*p.sizes(), *p.sizes("test")])
    assert_legible(figure)


def test_size_bars_have_all_splits():
    p = make_partition("iid", DATA[10], 20, 0).split_validation(0.2, 0)
    figure = plots.size_bars(p)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["train", "test", "validation"]
    assert "mean, 300.0" in figure._suptitle.get_text()
    assert_legible(figure)


@pytest.mark.parametrize(
    ("clients", "count"), [(5, 1), pytest.param(100, 5, marks=pytest.mark.costly)]
)
def test_comparison(clients, count):
    alphas = (0.01, 0.1, 1.0, 10.0, 100.0)[:count]
    partitions = {
        f"alpha={a}": make_partition("dirichlet", DATA[10], clients, 0, alpha=a) for a in alphas
    }
    figure = plots.comparison(partitions, DATA[10].labels, 10)
    assert [axes.get_title() for axes in figure.axes[:count]] == list(partitions)
    scales = {(axes.collections[0].norm.vmin, axes.collections[0].norm.vmax)
              for axes in figure.axes[:count]}  # fmt: skip
    assert len(scales) == 1
    assert "total variation" in figure.axes[0].get_xlabel()
    assert_legible(figure)
    with pytest.raises(InputError, match="partitions must be at least one"):
        plots.comparison({}, DATA[10].labels, 10)


@pytest.mark.costly
@pytest.mark.parametrize("clients", [2, 10, 100])
def test_label_map(clients):
    p = make_partition("waffle", DATA[10], clients, 0, distribution="B*")
    figure = plots.label_map(p)
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(shown.mask, (p.label_map == np.arange(10)).T)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == [str(label) for label in p.label_map.ravel()]
    assert_legible(figure)
    with pytest.raises(InputError, match="partition must be one with a label map, got 'iid'"):
        plots.label_map(make_partition("iid", DATA[10], 5, 0))


@pytest.mark.costly
def test_names_of_the_classes():
    p = make_partition("waffle", DATA[10], 4, 0, distribution="B*")
    given = [f"name {c}" for c in range(10)]
    for figure in (
        plots.heatmap(p, DATA[10].labels, 10, None, given),
        plots.comparison({"a": p, "b": p}, DATA[10].labels, 10, None, given),
        plots.label_map(p, None, given),
    ):
        shown = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
        assert given in shown
        assert_legible(figure)


def test_no_global_state_and_empty_clients():
    p = Partition.from_lists([[0], []], [[], []])
    plots.heatmap(p, DATA[2].labels, 2)
    plots.size_bars(p)
    plots.comparison({"x": p}, DATA[2].labels, 2)
    assert pyplot.get_fignums() == []


def test_a_partition_plots_itself():
    dataset = load_dataset("digits")
    partition = make_partition("dirichlet", dataset, 5, 0)
    by_class, sizes = partition.plot(dataset), partition.plot(title="Mine")
    assert len(by_class.axes) == 3 and by_class.axes[1].get_ylabel() == "class"
    assert len(sizes.axes) == 1 and sizes.get_suptitle().startswith("Mine")
