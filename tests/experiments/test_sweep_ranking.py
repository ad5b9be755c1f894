"""What a sweep makes of its outcomes: ranking, choices, notes and pictures."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.grid import ranking
from experiments.grid.pictures import picture
from fedjax_pfl.utils.metric_names import ACCURACY, Measure


def outcome(setting, validation):
    seeds, validation = tuple(range(len(validation))), np.array(validation)
    return ranking.Outcome("m", setting, seeds, validation, validation - 1)


def test_choices_that_one_run_can_not_have():
    """A flag that algorithms can't differ in is left out where their choices do, and said."""
    one = replace(outcome({"alpha": "1", "model": "mlp"}, [50.0]), algorithm="local")
    other = replace(one, algorithm="fedavg", setting={"alpha": "0.1", "model": "mlp"})
    result = [other, one]
    assert ranking.all_chosen(result).splitlines() == [
        "--algorithms=fedavg,local",
        "# alpha can't differ between the algorithms of a run:",
        "#   fedavg: 0.1",
        "#   local: 1",
        "--model=mlp",
    ]


def test_rows_over_different_clients_or_data():
    def row(setting, clients, remarks=()):
        return replace(outcome(setting, [50.0, 60.0]), clients=clients, remarks=remarks)

    result = [row({"a": "1"}, (0,), ("x",)), row({"a": "2"}, (0, 1, 2, 3, 4))]
    heading, _, *rows = ranking.table(result).to_markdown().splitlines()
    assert heading.endswith("| Test % | Mean over |")
    last = [line.strip("|* ").split(" | ")[-1].strip("* ") for line in rows]
    assert last == ["client 0", "5 clients"]
    assert heading.count("|") == rows[0].count("|") == rows[1].count("|")
    assert r"± 63.53\*" in rows[0]
    notes = ranking.footnotes(result, ["alpha"])
    assert notes[0] == "a=1: x."
    assert notes[1].startswith("Rows are means over different clients")
    assert notes[2].startswith("alpha changes the data")
    assert "* extends beyond the scale" in notes[3]
    same = [row({"a": "1"}, (0,)), row({"a": "2"}, (0,))]
    assert "Mean over" not in ranking.table(same).to_markdown()
    assert len(ranking.footnotes(same)) == 1
    both = [replace(one, remarks=("x", f"y{k}")) for k, one in enumerate(same)]
    assert ranking.footnotes(both)[:3] == ["All settings: x.", "a=1: y0.", "a=2: y1."]


def test_copies_after_a_further_local_training():
    plain = [outcome({"a": a}, [50.0, 60.0]) for a in "12"]
    both = [replace(one, trained=one.test + 10) for one in plain]
    heading, _, row, _ = ranking.table(both).to_markdown().splitlines()
    assert heading.endswith("| Test % | Trained % |")
    assert [cell.strip("* ").split()[0] for cell in row.split("|")[3:6]] == [
        "55.00",
        "54.00",
        "64.00",
    ]
    assert ranking.frame(both)["trained_test_percent"].tolist() == [59.0, 69.0] * 2
    said = [one for one in ranking.footnotes(both) if one.startswith("Trained: the mean of copies")]
    assert len(said) == 1 and "Trained" not in " ".join(ranking.footnotes(plain))
    assert "Trained" not in ranking.table(plain).to_markdown()
    assert "trained_test_percent" not in ranking.frame(plain)


def test_settings_that_diverged_are_ranked_last():
    result = [outcome({"a": "1"}, [np.nan, 1.0]), outcome({"a": "2"}, [3.0, 4.0])]
    assert [one.setting["a"] for one in ranking.ranked(result)] == ["2", "1"]


def test_pictures():
    def drawn(outcomes):
        return picture(ranking.frame(outcomes), "m", ACCURACY)

    values = [outcome({"a": a}, [float(a), 2.0]) for a in ("10", "1", "2")]
    line = drawn([replace(one, trained=one.test + 10) for one in values])
    assert [one.get_label() for one in line.axes[0].get_lines()] == ["validation", "test"]
    curve = line.axes[0].get_lines()[0]
    np.testing.assert_allclose(curve.get_xdata(), [1, 2, 10])  # by size
    np.testing.assert_allclose(curve.get_ydata(), [1.5, 2, 6])
    pairs = [(a, b) for a in "12" for b in ("x", "y", "z")]
    result = [outcome({"a": a, "b": b}, [float(a), float(a)]) for a, b in pairs]
    axes = drawn(result).axes[0]  # a line for each word, over the numbers
    heights = [line.get_ydata().tolist() for line in axes.get_lines()]
    assert heights == [[1, 2]] * 3 and axes.get_xlabel() == "a"
    assert drawn([outcome({}, [1.0])]) is None


def test_a_best_value_at_the_edge_of_the_grid_is_a_warning():
    def notes(*scores, values=("0.01", "0.1", "1e0")):
        pairs = zip(values, scores, strict=True)
        found = [outcome({"learning_rate": v, "model": "mlp"}, [x]) for v, x in pairs]
        return ranking.at_the_edge(found)

    beyond = "that was tried. Values beyond it may be better."
    assert notes(50.0, 60.0, 70.0) == [f"m: the best learning_rate, 1e0, is the largest {beyond}"]
    assert notes(70.0, 60.0, 50.0) == [f"m: the best learning_rate, 0.01, is the smallest {beyond}"]
    assert notes(50.0, 60.0, 50.0) == []
    assert notes(60.0, 50.0, 60.0) == []  # another one is as good
    assert notes(60.0, 50.0, values=("1", "1.0")) == []  # one number
    assert notes(60.0, 50.0, values=("adam", "1")) == []
    found = [outcome({"learning_rate": v}, [x]) for v, x in (("1", 50.0), ("2", 60.0))]
    assert "the best learning_rate, 2," in ranking.footnotes(found)[0]


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        *[(name, True) for name in ("feddwa.top_k", "batch_size", "wdr_weight", "lora_rank")],
        *[(name, False) for name in ("alpha", "attack_factor", "attackers", "drift_share")],
        *[(name, False) for name in ("dp_noise", "participation", "num_clients")],
    ],
)
def test_no_warning_where_the_problem_changes(name, warned):
    found = [outcome({name: v}, [x]) for v, x in (("1", 50.0), ("2", 60.0))]
    assert bool(ranking.at_the_edge(found)) == warned


def test_choices_of_each_client_and_on_test():
    """Two clients and seeds; the third client has no validation samples, the fourth ties."""
    nan = np.nan

    def row(name, validation, test):
        validation, test = np.array(validation), np.array(test)
        one = outcome({"a": name}, np.nanmean(validation, axis=1))
        return replace(one, test=test.mean(axis=1), by_client=(validation, test))

    first = row("1", [[90, 10, nan, 50], [80, 20, nan, 50]], [[1, 2, 3, 4], [5, 6, 7, 8]])
    second = row("2", [[70, 60, nan, 50], [95, 70, nan, 50]], [[10, 20, 30, 40], [50, 60, 70, 80]])
    both = [first, second]
    assert ranking.best(both) == [second]  # better on the mean, and so for the last two
    assert ranking.best_per_client(both).tolist() == [(1 + 20 + 30 + 40) / 4,
                                                          (5 + 60 + 70 + 80) / 4]  # fmt: skip
    high = [replace(first, test=np.array([99.0, nan])), replace(first, test=np.array([50.0, 20.0]))]
    assert ranking.best_on_test([*high, second]) is second
    error = Measure("mse", "lower", False)
    lower = [replace(one, measure=error) for one in both]
    assert ranking.best_on_test(lower) is lower[0]
    assert ranking.best_per_client(lower).tolist() == [(10 + 2 + 3 + 4) / 4,
                                                           (50 + 6 + 7 + 8) / 4]  # fmt: skip
