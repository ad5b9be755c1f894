"""Who gains and who is harmed: every number by hand."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot

import fedjax_pfl as pfl
from experiments.outputs import comparison_table, run_files
from experiments.outputs.run_files import write_comparison
from fedjax_pfl.results import harm
from fedjax_pfl.results.comparison_plots import Panel, sorted_gains
from fedjax_pfl.utils.metric_names import LOWER, Measure
from tests.experiments.written_runs import finals, write_run

SIZES = np.array([10, 10, 100, 100])
LOCAL = [[0.5, 0.5, 0.50, 0.9], [0.5, 1.0, 0.50, 0.9]]
OTHER = [[0.6, 0.4, 0.45, 0.9], [0.5, 0.9, 0.44, 0.8]]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harm")
    made = {}
    for name, values in (("local", LOCAL), ("fedavg", OTHER), ("feddwa", OTHER[::-1])):
        write_run(folder / name, name, finals(*values), [0, 1])
        result = pfl.Result.load(folder / name)
        made[name] = replace(result, test_sizes=SIZES, train_sizes=SIZES)
    return made


def test_every_number(results):
    gains = results["fedavg"].gains(results["local"])
    assert gains.seeds == (0, 1) and gains.clients.tolist() == [0, 1, 2, 3]
    wanted = np.array([[0.1, -0.1, -0.05, 0], [0, -0.1, -0.06, -0.1]])
    np.testing.assert_allclose(gains.values, wanted, atol=1e-12)
    # One of 10 samples at a mean of 0.45: 0.157; at 0.95: 0.069. 5 and 6 of 100 near 0.47: 0.0499.
    np.testing.assert_allclose(gains.errors[0], np.sqrt([
        0.55 * 0.45 / 10, 0.45 * 0.55 / 10, 0.475 * 0.525 / 100, 0.9 * 0.1 / 100
    ]))  # fmt: skip
    assert gains.harmed.tolist() == [[0, 0, 1, 0], [0, 1, 1, 1]]
    found = gains.summary()
    assert found["win_rate"].value == (1 + 0.5 + 0.5) / 8
    assert found["harmed"].value == 4 / 8
    assert found["mean_harm"].value == pytest.approx((0.1 + 0.05 + 0.1 + 0.06 + 0.1) / 8)
    assert found["tenth_percentile"].value == pytest.approx(np.quantile(wanted, 0.1))


def test_equal_counts_are_ties(results):
    """Accuracies are float32: 3 of 7 samples are 3 of 7, however they were computed."""
    sizes, shape = np.full(4, 7), (1, 1, 1, 4)
    pair = [
        replace(
            results[name],
            test_sizes=sizes,
            seeds=(0,),
            scores={"personalized/test/accuracy": np.full(shape, value, np.float32)},
        )
        for name, value in (("local", 3 / 7), ("fedavg", np.nextafter(np.float32(3 / 7), 1)))
    ]
    gains = pair[1].gains(pair[0])
    assert (gains.values == 0).all() and gains.summary()["win_rate"].value == 0.5


def test_equal_errors_are_gains_of_zero_without_a_sign(results):
    mse = Measure("mse", LOWER, fraction=False)
    (values,) = results["local"].scores.values()
    run = replace(results["local"], scores={"personalized/test/mse": values}, measures=(mse,))
    for one in run.gains(run).summary().values():
        assert not np.signbit(np.array(one)).any()


@pytest.mark.costly
def test_the_interval_is_over_clients():
    """Seeds that differ, clients that agree: resampling clients changes nothing."""
    same = harm.Gains(np.repeat([[0.1], [-0.1]], 9, axis=1), np.zeros((2, 9)), (0, 1), np.arange(9))
    for one in same.summary().values():
        assert one.low == pytest.approx(one.value) and one.high == pytest.approx(one.value)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1, 400))
    found = harm.Gains(values, np.zeros((1, 400)), (0,), np.arange(400)).summary()["win_rate"]
    half = 1.96 * np.sqrt(found.value * (1 - found.value) / 400)
    assert found.value - found.low == pytest.approx(half, rel=0.15)
    assert found.high - found.value == pytest.approx(half, rel=0.15)


def test_more_seeds_of_the_same_clients_narrow_no_interval():
    values = np.random.default_rng(2).normal(size=(1, 20))
    alone, thrice = (
        harm.Gains(np.repeat(values, count, axis=0), np.zeros((count, 20)), seeds, np.arange(20))
        for count, seeds in ((1, (0,)), (3, (0, 1, 2)))
    )
    assert alone.summary()["win_rate"] == thrice.summary()["win_rate"]


def test_many_clients_are_resampled_in_parts(monkeypatch):
    values = np.random.default_rng(1).normal(size=(2, 50))
    gains = harm.Gains(values, np.zeros((2, 50)), (0, 1), np.arange(50))
    whole = gains.summary()
    monkeypatch.setattr(harm, "MOST", 3000)
    parts = gains.summary()
    for name, one in whole.items():
        assert parts[name].value == one.value
        assert parts[name].low == pytest.approx(one.low, abs=0.05 * np.ptp(values))


def test_clients_without_a_score_are_no_pairs(results):
    values = np.array([[0.1, np.nan, -0.2, 0.3]])
    gains = harm.Gains(values, np.full((1, 4), 0.1), (0,), np.arange(4))
    found = gains.summary()
    assert found["win_rate"].value == pytest.approx(2 / 3)
    assert found["harmed"].value == pytest.approx(1 / 3)
    score = results["fedavg"].scores["personalized/test/accuracy"].copy()
    score[..., 1] = np.nan
    one = replace(results["fedavg"], scores={"personalized/test/accuracy": score})
    assert np.isnan(one.gains(results["local"]).values[:, 1]).all()


def test_a_measure_that_is_no_accuracy(results):
    error = pfl.models.Measure("mse", "lower", False)
    pair = [
        replace(
            results[name],
            measures=(error,),
            scores={"personalized/test/mse": results[name].scores["personalized/test/accuracy"]},
        )
        for name in ("fedavg", "local")
    ]
    found = pair[0].gains(pair[1]).summary()
    assert found["win_rate"].value == (5 + 1) / 8  # lower is better; of two ties each half
    assert np.isnan(found["harmed"].value)
    table = comparison_table.comparison({"local": pair[1], "fedavg": pair[0]})
    assert "Harmed vs local %" not in table.cells[0]
    assert "Harmed:" not in comparison_table.notes({"local": pair[1], "fedavg": pair[0]})


@pytest.mark.parametrize(("changes", "said"), [
    ({"seeds": (5, 6)}, "no seed in common"),
    ({"test_sizes": SIZES + 1}, "same samples; the test_sizes of fedavg and local differ"),
    ({"client_ids": np.arange(1, 5)}, "same samples; the client_ids of fedavg and local differ"),
    ({"partition_hash": "b"}, "fedavg and local had other partitions or data sets"),
    ({"copies_up": np.ones((2, 1, 2, 4, 1))}, "same rounds; fedavg had 1, local 2"),
    ({"measures": (pfl.models.Measure("mse", "lower"),)}, "got accuracy and MSE"),
    ({"copies_up": np.ones((2, 2, 1, 4, 1), int)}, "number of settings must be 1"),
    ({"scores": {"personalized/test/accuracy": np.full((2, 1, 1, 4), np.nan)}}, "both results"),
])  # fmt: skip
def test_refusals(results, changes, said):
    with pytest.raises(pfl.InputError, match=said):
        mine = replace(results["fedavg"], partition_hash="a")
        mine.gains(replace(results["local"], **changes))


def test_seeds_in_common_are_paired(results):
    flipped = replace(results["local"], seeds=(1, 7))
    gains = results["fedavg"].gains(flipped)
    assert gains.seeds == (1,)
    np.testing.assert_allclose(gains.values, [np.array(OTHER[1]) - LOCAL[0]], atol=1e-12)


def test_columns_of_the_comparison(results, tmp_path):
    table = comparison_table.comparison(results)
    heading, local, fedavg, feddwa = table.cells
    at = heading.index("Better than local %")
    assert heading[at : at + 4] == [
        "Better than local %", "Harmed vs local %", "Better than fedavg %", "Harmed vs fedavg %"
    ]  # fmt: skip
    assert local[at : at + 2] == ["-", "-"] and fedavg[at : at + 4] == ["25.00", "50.00", "-", "-"]
    assert "-" not in feddwa[at : at + 4]
    assert "Harmed: share of pairs" in comparison_table.notes(results)
    frame = table.to_pandas()
    found = results["fedavg"].gains(results["local"]).summary()["mean_harm"]
    names = [f"mean_harm_over_local{end}" for end in ("", "_low", "_high")]
    assert frame[names].iloc[1].tolist() == list(found)
    (tmp_path / "out").mkdir()
    write_comparison(tmp_path / "out", results, "title")
    assert (tmp_path / "out" / "gains.png").exists()
    others = {name: results[name] for name in ("feddwa",)}
    assert not any("Better" in one for one in comparison_table.comparison(others).cells[0])
    assert "Better" not in comparison_table.notes(others)
    run_files.write_comparison(tmp_path, others, "title")
    assert not (tmp_path / "gains.png").exists()


def test_the_figure(results):
    over = harm.gains_over_baselines(results, pfl.Result.gains)
    assert {base: list(rows) for base, rows in over.items()} == {
        "local": ["fedavg", "feddwa"], "fedavg": ["local", "feddwa"]
    }  # fmt: skip
    panels = [Panel(f"over {base}", base, rows) for base, rows in over.items()]
    assert len(sorted_gains([*panels, panels[0]], {"local": 0, "fedavg": 1, "feddwa": 2}).axes) == 3
    figure = sorted_gains(panels, {"local": 0, "fedavg": 1, "feddwa": 2})
    first, second = figure.axes
    line = first.get_lines()[0]
    np.testing.assert_allclose(line.get_ydata(), [-10, -10, -10, -6, -5, 0, 0, 10], atol=1e-9)
    np.testing.assert_allclose(line.get_xdata(), np.arange(8) * 12.5 + 6.25)
    assert first.get_legend().get_texts()[0].get_text() == "fedavg  25.0 %"
    assert second.get_title() == "over fedavg"
    assert second.get_ylabel() == "gain over fedavg in accuracy, points"
    pyplot.close("all")
