"""Measures: names in tables, and the direction that rankings, bold and headlines go."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as pfl
from experiments.figures.pivots import Pivot
from experiments.figures.run_table import best_in_bold, run_columns
from experiments.grid.ranking import Outcome, best, table
from experiments.outputs import comparison_table
from fedjax_pfl.results.accuracy_conventions import check_pools, one_number
from fedjax_pfl.results.table import BOLD, UNDERLINED, Table
from fedjax_pfl.utils.metric_names import ACCURACY, LOWER, Measure

MSE = Measure("mse", LOWER, fraction=False, pools=True)
PERPLEXITY = Measure("perplexity", LOWER, fraction=False)


def test_names():
    assert (ACCURACY.title, ACCURACY.axis) == ("Accuracy %", "accuracy, %")
    assert (MSE.title, MSE.axis) == ("MSE ↓", "MSE (lower is better)")
    assert MSE.heading("Worst tenth") == "Worst tenth ↓"
    assert (ACCURACY.column, MSE.column) == ("accuracy_percent", "mse")
    assert (ACCURACY.shown(50.125), MSE.shown(0.012345), MSE.shown(1234.567)) == (
        "50.12", "0.01235", "1234.57",
    )  # fmt: skip


def test_zeros_have_no_sign():
    for measure in (ACCURACY, MSE):
        assert not np.signbit(measure.toward(np.zeros(2))).any()
        assert measure.toward(np.float32([1, 2])).dtype == np.float32
        for text in (measure.shown, measure.brief):
            assert "-" not in text(-0.0) and text(-2.5).startswith("-2.5")
    assert (ACCURACY.shown(-0.001), ACCURACY.brief(-0.01)) == ("0.00", "0.0")


def test_directions():
    values = np.array([3.0, np.nan, 1.0, 2.0])
    np.testing.assert_array_equal(ACCURACY.worst_first(values), [1, 2, 3, np.nan])
    np.testing.assert_array_equal(MSE.worst_first(values), [3, 2, 1, np.nan])
    np.testing.assert_array_equal(MSE.best_so_far(values), [3, 3, 1, 1])
    curve = np.array([[3.0, 1.0, 2.0]])
    assert one_number(curve, "best", MSE) == 1 and one_number(curve, "best") == 3


def test_pooled_headlines_need_means_over_samples():
    check_pools("pfllib", MSE)
    check_pools("final", PERPLEXITY)
    with pytest.raises(pfl.InputError, match="perplexity is not a mean over samples: use 'final'"):
        check_pools("pfllib", PERPLEXITY)


@pytest.mark.parametrize(("measure", "chosen"), [(ACCURACY, "0.2"), (MSE, "0.1")])
def test_a_sweep_chooses_the_best(measure, chosen):
    result = [
        Outcome("fedavg", {"learning_rate": rate}, (0,), values, values, measure=measure)
        for rate, values in (("0.1", np.array([1.0])), ("0.2", np.array([2.0])))
    ]
    (one,) = best(result)
    assert one.setting["learning_rate"] == chosen
    text = table(result).to_markdown()
    assert f"**{chosen}**" in text or f"learning_rate={chosen}**" in text


def test_bold_is_the_best_of_a_column():
    rows = ["a", "b", "c"]
    scores = pd.DataFrame({"row": rows, "dataset": "x", "seed": 0, "score": [1.0, 2.0, 3.0]})
    assert Pivot(scores, "std", [], "", MSE).emphasis("x") == {"a": BOLD, "b": UNDERLINED}
    assert Pivot(scores, "std", [], "").emphasis("x") == {"c": BOLD, "b": UNDERLINED}
    rows = [{"label": str(value), "accuracy": value} for value in (0.25, 4.0)]
    table = best_in_bold(Table(run_columns(MSE), rows), "accuracy", MSE)
    assert r"\textbf{0.25}" in table.to_latex() and r"MSE $\downarrow$" in table.to_latex()
    lost = [{"label": "lost", "accuracy": np.nan}]
    for found, bold in ((lost + rows, {(1, "accuracy"): BOLD}), (lost, {})):
        assert best_in_bold(Table(run_columns(MSE), found), "accuracy", MSE).emphasis == bold


def test_an_infinite_error_counts():
    """A client whose error overflows is in the mean, and its round is not passed over."""
    curve = np.array([[3.0, np.nan, np.inf]])  # the second round was not scored
    assert one_number(curve, "final", MSE) == np.inf and one_number(curve, "best", MSE) == 3
    assert MSE.range[0] == 0 and PERPLEXITY.range[0] == 1  # where intervals end


def test_the_note_on_a_headline_names_the_measure():
    result = SimpleNamespace(measure=lambda: MSE)
    (said,) = comparison_table.headline_notes({"fedavg": result}, "pfllib")
    assert "the best round's MSE over all test samples pooled" in said


def test_a_row_with_an_infinite_error_is_ranked_last_there():
    errors = {"a": [9.0, np.inf, 9.0, 9.0, 9.0], "b": [10.0] * 5}
    lines = [(row, f"{k}", 0, one) for row, found in errors.items() for k, one in enumerate(found)]
    scores = pd.DataFrame(lines, columns=["row", "dataset", "seed", "score"])
    ranking, notes = Pivot(scores, "std", [], "", MSE).ranking()
    assert ranking.ranks.tolist() == [[1, 2], [2, 1], [1, 2], [1, 2], [1, 2]]
    assert notes[0] == "Ranked last, as their scores are infinite: a (1)."
    scores["score"] = -scores["score"] * np.where(scores["dataset"] == "0", 1e9, 1)
    ranking, _ = Pivot(scores, "std", [], "").ranking()  # higher is better; blocks differ in scale
    assert ranking.ranks.tolist() == [[1, 2], [2, 1], [1, 2], [1, 2], [1, 2]]
