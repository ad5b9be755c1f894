"""Accuracy against settings, against the summaries of the runs."""

import json
import shutil

import numpy as np
import pytest

from experiments.figures import lines, settings
from experiments.figures.loading import find
from fedjax_pfl.utils.errors import InputError
from tests.experiments.written_runs import rewrite, write_run

from .conftest import rows_of


@pytest.fixture
def ablation(found, tmp_path):
    """`ablation(run, name, seed=0, **hyperparameters)`: the run, said to have had those."""

    def make(run, name, seed=0, **hyperparameters):
        folder = tmp_path / name / run.algorithm
        shutil.copytree(run.folder, folder)
        config = json.loads((folder / "config.json").read_text())
        config["hyperparameters"] |= hyperparameters
        config["flags"]["run"]["seed"] = seed
        (folder / "config.json").write_text(json.dumps(config))
        return find([str(folder)])[0]

    return make


def summary(run):
    return json.loads((run.folder / "summary.json").read_text())


def final(run):
    return 100 * summary(run)["accuracy"]["final_mean"]


def test_points_are_the_summaries_numbers(found, metrics):
    free, regular = found["free", "cwfedavg"], found["main", "cwfedavg"]
    drawn = settings.against_setting(
        [regular, free], x="cwfedavg.wdr_weight", record="class_share_error"
    )
    left, right = drawn.figure.axes
    (line,) = left.get_lines()
    np.testing.assert_allclose(line.get_ydata(), [final(free), final(regular)], rtol=1e-5)
    assert [text.get_text() for text in left.get_xticklabels()] == ["0", "10"]
    errors = [metrics(run, "class_share_error")[3].mean() for run in (free, regular)]
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), errors, rtol=1e-5)
    assert errors[0] > errors[1]  # what the regularizer is for
    assert list(drawn.numbers) == ["row", "cwfedavg.wdr_weight", "seed", "value", "metric"]
    values = [row[-2] for row in rows_of(drawn) if row[1] == "0" and "class_share" in row[-1]]
    np.testing.assert_allclose(values, metrics(free, "class_share_error")[3], rtol=1e-5)


def test_best_and_a_line_for_each_row(found, ablation):
    runs = [ablation(found["main", "feddwa"], f"k{k}", top_k=k) for k in (1, 3)]
    runs += [found["main", "local"]]  # has no such setting
    drawn = settings.against_setting(runs, x="top_k", score="best")
    (line,) = drawn.figure.axes[0].get_lines()
    best = 100 * summary(runs[0])["accuracy"]["best_mean"]
    np.testing.assert_allclose(line.get_ydata(), [best, best], rtol=1e-5)
    np.testing.assert_array_equal(line.get_xdata(), [1, 3])
    assert list(drawn.handles) == ["feddwa"]
    assert "also differ" not in drawn.figure.get_suptitle()  # feddwa.top_k is top_k


def test_traffic(found):
    run = found["main", "feddwa"]
    drawn = settings.against_setting([run], x="top_k", record="traffic")
    sent = summary(run)["traffic_mb_per_client_round"]
    point = drawn.figure.axes[1].containers[0].lines[0].get_ydata()
    np.testing.assert_allclose(point, sent["up"] + sent["down"], rtol=1e-6)


def test_records_are_those_of_the_chosen_clients_that_took_part(tmp_path):
    folder = tmp_path / "a" / "local"
    write_run(folder, "local", [[[0.5, 0.5, 0.5]] * 2], [0], sent=1.0)
    there = np.array([[[[1, 1, 1], [0, 1, 1]]]], bool)  # [S, H, T, N]
    clients = {"participated": there, "loss": there * np.array([7.0, 2.0, 3.0])}
    copies = there[..., None].astype(np.int32)
    rewrite(folder, clients=clients, copies_up=4 * copies * [[1], [1], [2]], copies_down=0 * copies)
    runs = find([str(tmp_path)])
    for record, chosen, value in (
        ("loss", "", 2.5), ("loss", "0,1", 2), ("traffic", "0,1", 4), ("traffic", "2", 8)
    ):  # fmt: skip
        drawn = settings.against_setting(runs, x="rounds", record=record, clients=chosen)
        assert rows_of(drawn)[-1][-2] == pytest.approx(value)


def test_repetitions_are_more_seeds(found, ablation):
    first = ablation(found["main", "feddwa"], "first")
    second = ablation(found["longer", "cwfedavg"], "second", seed=5)
    config = json.loads((first.folder / "config.json").read_text())
    config["flags"]["run"]["seed"], config["seeds"] = 5, [5, 6]
    (second.folder / "config.json").write_text(json.dumps(config))
    rewrite(second.folder, algorithm="feddwa", seeds=(5, 6))
    (second,) = find([str(second.folder)])
    drawn = settings.against_setting([first, second], x="top_k")
    point = drawn.figure.axes[0].containers[0].lines[0].get_ydata()
    np.testing.assert_allclose(point, (final(first) + final(second)) / 2, rtol=1e-5)
    assert "mean of 4 seeds" in drawn.figure.get_suptitle()
    once = ablation(found["main", "feddwa"], "once", top_k=1)
    drawn = settings.against_setting([first, second, once], x="top_k")
    assert "mean of 2 to 4 seeds" in drawn.figure.get_suptitle().replace("\n", " ")


def test_against_setting_refused(found, ablation):
    run = found["main", "feddwa"]
    one, two = ablation(run, "one", guidance_epochs=1), ablation(run, "two", guidance_epochs=2)
    drawn = settings.against_setting([one, two], x="top_k")
    assert list(drawn.handles) == ["feddwa, guidance_epochs=1", "feddwa, guidance_epochs=2"]
    with pytest.raises(InputError, match=r"--x=NAME; these runs differ in feddwa.guidance_epochs"):
        settings.against_setting([one, two])
    with pytest.raises(InputError, match=r"Unknown setting 'guidance_epoch'. Did you mean"):
        settings.against_setting([one, two], x="guidance_epoch")
    with pytest.raises(InputError, match=r"record 'wieght'"):
        settings.against_setting([one, two], x="guidance_epochs", record="wieght")


@pytest.mark.parametrize(
    ("texts", "places", "scale"),
    [
        (["1", "10", "3"], [1, 3, 10], "linear"),
        (["0.01", "0.1", "1"], [0.01, 0.1, 1], "log"),
        (["0", "1", "100"], [0, 1, 2], "even"),  # zero has no logarithm
        (["0", "0.5"], [0, 0.5], "linear"),
        (["A", "B"], [0, 1], "words"),
        (["A, 1", "A, 2"], [0, 1], "words"),
        (["3"], [0], "words"),
    ],
)
def test_axis_of_settings(texts, places, scale):
    where, kind = lines.axis_of(texts)
    assert list(where.values()) == places and kind == scale
