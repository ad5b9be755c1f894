"""A result's table and picture, and the page that says what its axes are."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fedjax_pfl as pfl
from fedjax_pfl.results.intervals import half_width, interval, interval_note
from fedjax_pfl.results.plots import mixing_heatmaps
from fedjax_pfl.results.result_table import named_settings, setting_names
from fedjax_pfl.testing.toys import toy_federation

PAGE = (Path(__file__).parents[2] / "docs/results.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """What the page's Python makes, run as written: two seeds, two settings, five clients."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names, patch = {}, pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("page"))
    exec(compile(block, "results.md", "exec"), names)
    assert Path("accuracy.png").stat().st_size > 10_000
    patch.undo()
    return names["result"]


@pytest.mark.costly
def test_axes_are_as_the_page_says(result):
    lengths = {"S": 2, "H": 2, "E": 4, "T": 4, "N": 5, "G": len(result.blocks)}
    fields = dict(re.findall(r"^\| `(\w+)[\[`].*?\| ([A-Z](?:, [A-Z])*) \|", PAGE, re.MULTILINE))
    assert fields.keys() >= {"scores", "clients", "scalars", "copies_up", "settings"}
    for name, letters in fields.items():
        value = getattr(result, name)
        for array in value.values() if isinstance(value, dict) else [value]:
            assert array.shape == tuple(lengths[letter] for letter in letters.split(", ")), name
    calls = re.findall(
        r"^\| `result\.(\w+)\([^`]*\)` \| ([A-Z](?:, [A-Z])*) \|", PAGE, re.MULTILINE
    )
    assert len(calls) == 8
    for name, letters in calls:
        value = getattr(result, name)()
        value = value["up"] if isinstance(value, dict) else value
        assert value.shape == tuple(lengths[letter] for letter in letters.split(", ")), name


@pytest.mark.costly
@pytest.mark.filterwarnings("error")
def test_rounds_without_scores_are_left_out(result):
    scores = {name: values.copy() for name, values in result.scores.items()}
    for values in scores.values():
        values[:, :, :-1] = np.nan
    late = replace(result, scores=scores)
    assert np.isnan(late.curve()[..., :-1]).all() and result.curve().dtype == late.curve().dtype
    np.testing.assert_array_equal(late.curve()[..., -1], result.curve()[..., -1])
    accuracy, whole = late.summary()["accuracy"], result.summary()["accuracy"]
    assert accuracy["best_mean"] == accuracy["last_tenth_mean"] == accuracy["final_mean"]
    assert accuracy["final_mean"] == whole["final_mean"]


def test_numbers_of_the_table(result):
    heading, rule, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.table().splitlines()
        if line.startswith("|")
    ]
    assert heading[:4] == ["Setting", "Accuracy %", "± 95 %", "Worst tenth %"]
    assert set(rule[1:]) == {"---:"}
    assert [row[0] for row in rows] == ["top_k=1", "top_k=5"]
    for h, row in enumerate(rows):
        last = 100 * result.accuracy()[:, h, -1].mean(axis=-1)
        low, high = stats.t.interval(0.95, 1, last.mean(), stats.sem(last))
        worst = 100 * result.accuracy()[:, h, -1].min(axis=-1).mean()
        best = 100 * result.curve()[:, h].max(axis=-1).mean()
        expected = [last.mean(), (high - low) / 2, worst, best]
        assert row[2].endswith("*") == (low < 0 or high > 100)
        cells = [float(cell.rstrip("*")) for cell in row[1:5]]
        np.testing.assert_allclose(cells, expected, atol=0.006)
        sent, sizes = result.traffic_mb_per_client_round(h), result.traffic()
        assert sent == pytest.approx({way: sizes[way][:, h].mean() / 1e6 for way in sizes})
        np.testing.assert_allclose([float(c) for c in row[5:]], [sent["up"], sent["down"]], 0.01)


@pytest.mark.parametrize("name", ["trained", "adapted"])
def test_copies_have_a_column(result, name):
    assert not result.copies() and "Adapted" not in result.table()
    accuracy = result.accuracy()
    both = {"personalized/test/accuracy": accuracy, f"{name}/test/accuracy": accuracy / 2}
    made = replace(result, scores=both)
    heading, _, row = made.table().splitlines()[:3]
    assert heading.split(" | ")[3] == f"{name.title()} %"
    value = 50 * accuracy[:, 0, -1].mean()
    np.testing.assert_allclose(float(row.split(" | ")[3]), value, atol=0.006)
    assert name.title() not in made.table(name)


def test_the_worst_tenth_is_of_the_clients_that_a_setting_scores(result):
    name = "personalized/test/accuracy"
    accuracy = np.broadcast_to(np.linspace(0, 1, 40), (2, 2, 1, 40)).copy()
    accuracy[:, 0, :, 1:] = np.nan
    worst = replace(result, scores={name: accuracy}).worst_decile()
    np.testing.assert_allclose(worst, [[0, accuracy[0, 1, 0, :4].mean()]] * 2)
    accuracy[0, 1] = np.nan
    worst = replace(result, scores={name: accuracy}).worst_decile()
    assert np.isnan(worst).tolist() == [[False, True], [False, False]]


def test_plain_text_has_the_same_cells(result):
    aligned, *below = result.table(form="plain").split("\n\n")
    table, *notes = result.table().split("\n\n")
    plain = [re.split(r"  +", line) for line in aligned.splitlines()]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert plain == [rows[0], *rows[2:]]
    assert len({len(line) for line in aligned.splitlines()}) == 1
    assert below == notes


def test_what_two_seeds_are_worth(result):
    note = result.table().split("\n\n")[-1]
    assert note.startswith("With 2 seeds a 95 % interval has 1 degree of freedom and extends 12.7")
    assert interval_note(2, False) and interval_note(3, True) and interval_note(3, False) is None
    assert interval_note(1, False) is None  # none is shown
    assert "*" in interval_note(2, True) and "*" not in interval_note(2, False)
    assert half_width(46.0, 133.42) == "133.42*" and half_width(46.0, 13.3) == "13.30"
    assert half_width(99.5, 0.6) == "0.60*" and half_width(100.0, 0.0) == "0.00"
    assert half_width(-40.0, 50.0, low=-100) == "50.00" and half_width(50.0, None) == "-"


def test_settings_that_score_different_clients(result):
    """Such as two Alices of WAFFLE, or one, beside the mean over all clients."""
    name = "personalized/test/accuracy"
    accuracy = result.scores[name].copy()
    accuracy[:, 1, :, 1:] = np.nan
    heading, _, *rows = replace(result, scores={name: accuracy}).table().splitlines()[:4]
    assert heading.split(" | ")[3] == "Mean over"
    assert [row.split(" | ")[3] for row in rows] == ["5 clients", "client 0"]
    accuracy[:, 0, :, 1:] = np.nan
    alone = replace(result, scores={name: accuracy})
    assert "Mean over" not in alone.table().splitlines()[0]
    assert "Mean over client 0 of 5." in alone.table().split("\n\n")
    assert "over client 0, worst tenth" in repr(alone)
    assert " over " not in repr(result)


def test_one_line_names_the_best_setting_and_those_of_its_remarks(result):
    means = result.curve()[:, :, -1].mean(axis=0)
    text, names = repr(result), setting_names(result)
    assert f"best on test {names[means.argmax()]}: final mean accuracy {means.max():.4f}" in text
    alone = result.select(top_k=int(result.settings["top_k"][0]))
    assert "best on test" not in repr(alone) and f"accuracy {means[0]:.4f}" in repr(alone)


def test_one_seed_has_no_interval(result):
    cut = {name: value[:1] for name, value in vars(result).items()
           if name in ("seeds", "copies_up", "copies_down")}  # fmt: skip
    cut |= {name: {key: value[:1] for key, value in getattr(result, name).items()}
            for name in ("scores", "clients", "scalars")}  # fmt: skip
    row = replace(result, **cut).table().splitlines()[2]
    assert row.split(" | ")[2] == "-"
    assert interval(np.array([0.5])) is None


def test_lines_of_the_picture(result):
    (axes,) = result.plot().axes
    assert len(axes.lines) == 2
    for h, line in enumerate(axes.lines):
        assert line.get_xdata().tolist() == [1, 2, 3, 4]
        np.testing.assert_allclose(line.get_ydata(), 100 * result.curve()[:, h].mean(axis=0))
        assert line.get_label() == ("top_k=1", "top_k=5")[h]


def test_bad_names(result):
    with pytest.raises(pfl.InputError, match="Did you mean 'plain'"):
        result.table(form="plane")
    with pytest.raises(pfl.InputError, match="No scores 'none/test/accuracy'"):
        result.table("none")
    with pytest.raises(pfl.InputError, match="No scores 'personalized/train/accuracy'"):
        result.plot(split="train")
    with pytest.raises(pfl.InputError, match="nor others: no client that is scored has a test or"):
        replace(result, scores={}).values()


def test_clients_names(result, tmp_path):
    names = ("north", "south", "east", "west", "sea")
    named = replace(result, client_names=names)
    assert "client_names" not in result.summary() and named.summary()["client_names"] == [*names]
    diverged = np.zeros_like(result.clients["diverged"])
    diverged[0, :, 1, [1, 4]] = True
    named = replace(named, clients=result.clients | {"diverged": diverged})
    assert "training of clients 1 (south), 4 (sea) went non-finite" in named.table()
    named.save(tmp_path / "a")
    assert pfl.Result.load(tmp_path / "a").client_names == names
    figure = mixing_heatmaps(np.eye(5)[None], [1], client_names=names)
    axes = figure.axes[0]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == [*names]


@pytest.mark.costly
def test_metrics_do_not_take_the_place_of_columns():
    taken = ("mean", "half", "setting", "worst", "best", "up", "epsilon")
    metrics = [pfl.models.Metric(name, lambda o, y, v: 0.125 + 0 * o.sum()) for name in taken[:6]]
    plain = toy_federation(dtype="float32")
    cells = [
        pfl.simulate(pfl.make_algorithm("fedavg"), federation, 1).table().splitlines()[2].split("|")
        for federation in (plain, toy_federation(dtype="float32", metrics=metrics))
    ]
    assert cells[1][1:6] == cells[0][1:6] and cells[1][6:12] == [" 0.125 "] * 6


def test_further_metrics_are_named(result):
    measures = tuple(pfl.models.Measure(f"m{k}", "higher", fraction=False) for k in range(8))
    scores = {f"personalized/test/m{k}": result.accuracy() for k in range(8)}
    made = replace(
        result, measures=(*result.measures, *measures), scores={**result.scores, **scores}
    )
    assert "Not shown: m6, m7;" in made.table()


def test_settings_that_are_nearly_equal_have_names_of_their_own():
    names = named_settings({"rate": np.array([0.1, 0.1000001]), "k": np.array([1, 1])})
    assert names == ["rate=0.1, k=1", "rate=0.1000001, k=1"]
    assert named_settings({"rate": np.float32([0.1, 0.3])}) == ["rate=0.1", "rate=0.3"]
