"""Curves and points of accuracy, against the numbers that the runs wrote."""

import json

import numpy as np
import pytest

from experiments.figures import accuracy
from experiments.figures.loading import find
from experiments.outputs import line_styles
from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import InputError
from tests.experiments.written_runs import write_run

from .conftest import CLIENTS, ROUNDS, SEEDS, rows_of

NAME = "personalized/test/accuracy"


def lines(axes, points=ROUNDS):
    """Curves of an axes, without those that only mark something."""
    return [line for line in axes.get_lines() if len(line.get_xdata()) == points]


def percent(by_round):
    """[S, E] of {round: [S]}."""
    return 100 * np.array(list(by_round.values())).T


def test_curves_are_the_means_of_metrics_csv(found, metrics):
    runs = [found["main", "local"], found["main", "feddwa"]]
    drawn = accuracy.by_round(runs)
    axes = drawn.figure.axes[0]
    for run, line, band in zip(runs, lines(axes), axes.collections, strict=True):
        values = percent(metrics(run, NAME))
        np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0), rtol=1e-5)
        np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
        (path,) = band.get_paths()
        low, high = (fn(path.vertices[:, 1]) for fn in (np.min, np.max))
        np.testing.assert_allclose([low, high], [values.min(), values.max()], rtol=1e-5)
    (legend,) = drawn.figure.legends
    last = {r.algorithm: percent(metrics(r, NAME))[:, -1].mean() for r in runs}
    best = max(last, key=last.get)
    assert legend.get_texts()[0].get_text() == f"{best}  {last[best]:.1f}"
    assert len(drawn.numbers) == 2 * len(SEEDS) * ROUNDS
    row = next(r for r in rows_of(drawn) if r[1] == "feddwa" and r[4:6] == (1, 2))
    assert row[-1] == pytest.approx(100 * metrics(runs[1], NAME)[2][1], rel=1e-5)


def test_best_so_far_never_falls(found, metrics):
    runs = [found["main", "cwfedavg"]]
    drawn = accuracy.by_round(runs, best_so_far=True)
    values = np.maximum.accumulate(percent(metrics(runs[0], NAME)), axis=1)
    (line,) = lines(drawn.figure.axes[0])
    np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0), rtol=1e-5)
    title = drawn.figure.get_suptitle().replace("\n", " ")
    assert title.startswith("personalized model, test samples, best so far, mean over clients;")


def test_clients_of_another_partition_are_not_the_same_ones(found):
    drawn = accuracy.by_round([found["main", "local"], found["iid", "fedavg"]])
    title = drawn.figure.get_suptitle().replace("\n", " ")
    assert "mean over clients, not the same ones in all runs" in title


def test_all_are_scored_by_whom_an_algorithm_serves(found):
    """Weight Erosion serves client 1: beside it the others' lines are those of client 1, too."""
    runs = [found["main", "local"], found["main", "weight_erosion"]]
    drawn = accuracy.by_round(runs)
    wanted = 100 * runs[0].values()[:, :, 1].mean(axis=0)
    np.testing.assert_allclose(lines(drawn.figure.axes[0])[0].get_ydata(), wanted, rtol=1e-5)
    assert "client 1" in drawn.figure.get_suptitle()
    chosen = accuracy.by_round(runs[:1], clients="0,2")
    wanted = 100 * runs[0].values()[:, :, [0, 2]].mean(axis=(0, 2))
    np.testing.assert_allclose(lines(chosen.figure.axes[0])[0].get_ydata(), wanted, rtol=1e-5)
    with pytest.raises(InputError, match=r"clients must be numbers in 0\.\.3, got '4'"):
        accuracy.by_round(runs[:1], clients="0,4")


def test_server_accuracy_is_pooled(found, metrics):
    """The "server" column of the asynchronous algorithms: all test samples alike."""
    runs = [found["iid", "fedavg"]]
    drawn = accuracy.by_round(
        runs, models="personalized,global", averages="clients,samples", panel="model"
    )
    clients, server = drawn.figure.axes
    assert clients.get_title() == "personalized model, mean over clients"
    wanted = percent(metrics(runs[0], NAME)).mean(axis=0)
    np.testing.assert_allclose(lines(clients)[0].get_ydata(), wanted, rtol=1e-5)
    wanted = percent(metrics(runs[0], "global/test/accuracy_pooled")).mean(axis=0)
    np.testing.assert_allclose(lines(server)[0].get_ydata(), wanted, rtol=1e-5)
    (axes,) = accuracy.by_round(runs, models="personalized,global").figure.axes
    assert [line.get_label() for line in lines(axes)] == ["personalized", "global"]
    with pytest.raises(InputError, match=r"--averages must be one for each of"):
        accuracy.by_round(runs, averages="clients,samples,clients")
    with pytest.raises(InputError, match=r"Unknown average 'sample'. Did you mean 'samples'"):
        accuracy.by_round(runs, averages="sample")


@pytest.mark.parametrize(("score", "key"), [("final", "final_mean"), ("best", "best_mean")])
def test_bars_of_models_are_the_summaries_numbers(found, score, key):
    run = found["main", "feddwa"]
    drawn = accuracy.bars([run], models="guidance,personalized", score=score)
    summary = json.loads((run.folder / "summary.json").read_text())["accuracy"]
    heights = [bar.get_height() for bar in drawn.figure.axes[0].patches]
    guided = 100 * run.values("guidance").mean(axis=-1)
    wanted = guided[:, -1] if score == "final" else guided.max(axis=1)
    np.testing.assert_allclose(heights, [wanted.mean(), 100 * summary[key]], rtol=1e-5)
    with pytest.raises(InputError, match=r"Unknown score 'bst'. Did you mean 'best'"):
        accuracy.bars([run], models="guidance", score="bst")


def test_every_client(found):
    runs = [found["main", "local"], found["main", "weight_erosion"]]
    drawn = accuracy.by_client(runs)
    first, second = (box.lines[0] for box in drawn.figure.axes[0].containers)
    last = 100 * runs[0].values()[:, -1].astype(float)
    np.testing.assert_allclose(first.get_ydata(), last.mean(axis=0), rtol=1e-5)
    assert np.all(np.abs(first.get_xdata() - np.arange(CLIENTS)) < 0.5)
    assert np.rint(second.get_xdata()).tolist() == [1]  # the only client it serves
    assert len(drawn.numbers) == len(SEEDS) * (CLIENTS + 1)


def test_clients_that_departed_are_no_part_of_the_mean_over_clients(tmp_path):
    write_run(tmp_path / "a" / "fedavg", "fedavg", [[[0.5, 0.6, 0.9], [0.4, np.nan, 0.8]]], [0])
    drawn = accuracy.by_client(find([str(tmp_path)]))
    (line,) = (one for one in drawn.axes[0].get_lines() if one.get_linestyle() == "--")
    np.testing.assert_allclose(line.get_ydata(), 60, rtol=1e-5)
    assert drawn.numbers["client"].tolist() == [0, 2]


def test_bars_have_intervals_over_seeds(found):
    runs = [found["main", "local"], found["main", "feddwa"]]
    drawn = accuracy.bars(runs)
    heights = [bar.get_height() for bar in drawn.figure.axes[0].patches]
    for run, height, row in zip(runs, heights, rows_of(drawn), strict=True):
        scores = 100 * run.values()[:, -1].astype(float).mean(axis=-1)
        assert height == pytest.approx(scores.mean(), rel=1e-5)
        half = 12.7062 * scores.std(ddof=1) / 2**0.5
        assert row[3:] == pytest.approx((2, scores.mean(), half), rel=1e-4)


def test_points_have_different_colours_as_far_as_there_are_any():
    count = len(plots.COLOURS)
    assert line_styles.distinct_colors([0, 1, count]) == [0, 1, 2]
    assert line_styles.distinct_colors([count + 3, 3]) == [count + 3, 0]
    assert line_styles.distinct_colors([3, 4]) == [3, 4]
    many = line_styles.distinct_colors(list(range(count + 2)))
    assert many == list(range(count + 2))
