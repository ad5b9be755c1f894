"""Accuracy against cost, and client against client, against the numbers that the runs wrote."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.figures import comparison
from experiments.figures.loading import find
from fedjax_pfl import Result
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.metric_names import ACCURACY, Measure
from tests.experiments.small_runs import arrays, assert_input_error
from tests.experiments.written_runs import SAME, finals, rewrite, write_run

from .conftest import CLIENTS, ROUNDS, rows_of


def curves(axes):
    return [line for line in axes.get_lines() if len(line.get_xdata()) == ROUNDS]


def test_megabytes_are_those_of_both_ways_so_far(found):
    run = found["main", "feddwa"]
    drawn = comparison.by_cost([run], x="megabytes")
    (line,) = curves(drawn.figure.axes[0])
    file = arrays(run.folder)
    sent = file["traffic/up_bytes"] + file["traffic/down_bytes"]
    accuracy = file["personalized/test/accuracy"]
    per_round = sent.sum(axis=2).mean(axis=0) / 1e6
    np.testing.assert_allclose(line.get_xdata(), np.cumsum(per_round), rtol=1e-6)
    assert per_round[0] > 0
    np.testing.assert_allclose(line.get_ydata(), 100 * accuracy.mean(axis=(0, 2)), rtol=1e-5)
    assert {row[3] for row in rows_of(drawn)} == {1, 2, 3}


def test_megabytes_are_summed_over_clients_and_unscored_rounds():
    sent = {"up": np.full((1, 3, 2), 5e5), "down": np.full((1, 3, 2), 1e6)}
    result = SimpleNamespace(eval_rounds=[1, 3])
    run = SimpleNamespace(result=result, seeds=[0], traffic=sent.get)
    np.testing.assert_allclose(comparison.cost_curve(run, "megabytes"), [[3, 9]])


def test_gflop_are_those_of_all_clients_so_far(found, tmp_path):
    run = found["main", "feddwa"]
    (line,) = curves(comparison.by_cost([run], x="gflop").figure.axes[0])
    per_round = run.summary["computation"]["gflop_per_client_round"] * CLIENTS
    np.testing.assert_allclose(line.get_xdata(), per_round * np.arange(1, 4), rtol=1e-6)
    replace(run.result, flops_per_step=None).save(tmp_path)
    with pytest.raises(InputError, match="has no FLOPs: it was run before they were counted"):
        comparison.by_cost([replace(run, folder=tmp_path)], x="gflop")


def test_rounds_and_seconds(found):
    runs = [found["main", "local"], found["main", "feddwa"]]
    for line in curves(comparison.by_cost(runs, x="rounds").figure.axes[0]):
        np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
    lines = curves(comparison.by_cost(runs, x="seconds").figure.axes[0])
    for run, line in zip(runs, lines, strict=True):
        pace = run.summary["seconds_per_round"]
        np.testing.assert_allclose(line.get_xdata(), pace * np.arange(1, 4))


def test_bad_input(found):
    assert_input_error("x", comparison.by_cost, [found["main", "local"]], x="flops")


def test_sorted_gains(found):
    local, feddwa = found["main", "local"], found["main", "feddwa"]
    drawn = comparison.sorted_gains([local, feddwa])
    wanted = feddwa.values()[:, -1].astype(float) - local.values()[:, -1]
    (line, _) = drawn.figure.axes[0].get_lines()
    np.testing.assert_allclose(line.get_ydata(), 100 * np.sort(wanted.ravel()), atol=1e-4)
    assert [row[2:4] for row in rows_of(drawn)] == [
        (seed, client) for seed in local.seeds for client in range(CLIENTS)
    ]
    spelled = comparison.sorted_gains([local, feddwa], baseline="Local")
    assert rows_of(spelled) == rows_of(drawn)
    assert spelled.figure.axes[0].get_ylabel() == "gain over local in accuracy, points"
    with pytest.raises(InputError, match=r"Unknown baseline 'fedavg'. Valid: feddwa, local"):
        comparison.sorted_gains([local, feddwa], baseline="fedavg")
    assert_input_error("needs other runs beside those of 'local'", comparison.sorted_gains, [local])
    with pytest.raises(InputError, match="the same clients with the same samples in all runs, got"):
        comparison.sorted_gains([local, found["iid", "fedavg"]])


def test_gains_are_in_the_chosen_metric(tmp_path):
    error = Measure("mse", "lower", fraction=False)
    for name, score in (("local", 0.0), ("fedavg", 1.0)):
        write_run(tmp_path / name, name, finals([score] * 2), [0], **SAME)
        ((key, values),) = Result.load(tmp_path / name).scores.items()
        scores = {key: values, "personalized/test/mse": 4 * values}
        rewrite(tmp_path / name, scores=scores, measures=(ACCURACY, error))
    for metric, column, gain in ((None, "accuracy_gain_points", 100), ("mse", "mse_gain", -4)):
        drawn = comparison.sorted_gains(find([str(tmp_path)], metric=metric))
        np.testing.assert_allclose(drawn.numbers[column], gain)
        np.testing.assert_allclose(drawn.axes[0].get_lines()[0].get_ydata(), gain)
    assert drawn.axes[0].get_ylabel() == "gain over local in MSE"


def test_several_baselines(found, tmp_path):
    """Runs that differ in more than seeds are refused; those of other seeds are pooled."""
    local, longer, feddwa = (
        found[at] for at in (("main", "local"), ("longer", "local"), ("main", "feddwa"))
    )
    with pytest.raises(InputError, match="baseline 'local' is 2 runs that are not one with"):
        comparison.sorted_gains([local, longer, feddwa])
    with pytest.raises(InputError, match="after the same rounds; local had 4, local 3"):
        comparison.sorted_gains([local, longer, feddwa], baseline="local, rounds=3")

    def of_seed(seed):
        folder = tmp_path / f"{seed}" / "local"
        shutil.copytree(local.folder, folder)
        at, result = [local.seeds.index(seed)], local.result
        scores = {name: values[at] for name, values in result.scores.items()}
        rewrite(folder, seeds=(seed,), scores=scores)
        return replace(local, folder=folder, config=local.config | {"seeds": [seed]})

    pooled = comparison.sorted_gains([of_seed(1), of_seed(0), feddwa])
    wanted = rows_of(comparison.sorted_gains([local, feddwa]))
    assert sorted(row[2:] for row in rows_of(pooled)) == [row[2:] for row in wanted]
