"""Tests over data sets: against scipy, and against Demsar's published table."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import fedjax_pfl as pfl
from fedjax_pfl.results.significance import Ranking, holm, signed_ranks_p
from tests.experiments.written_runs import finals, write_run

# Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 7 (2006), Table 6:
# AUC on 14 data sets. The last two of "voting" are 0.975 in print, with the ranks 2 and 3.
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")
AUC = np.array([
    [0.763, 0.768, 0.771, 0.798],
    [0.599, 0.591, 0.590, 0.569],
    [0.954, 0.971, 0.968, 0.967],
    [0.628, 0.661, 0.654, 0.657],
    [0.882, 0.888, 0.886, 0.898],
    [0.936, 0.931, 0.916, 0.931],
    [0.661, 0.668, 0.609, 0.685],
    [0.583, 0.583, 0.563, 0.625],
    [0.775, 0.838, 0.866, 0.875],
    [1.000, 1.000, 1.000, 1.000],
    [0.940, 0.962, 0.965, 0.962],
    [0.619, 0.666, 0.614, 0.669],
    [0.972, 0.981, 0.9751, 0.975],
    [0.957, 0.978, 0.946, 0.970],
])  # fmt: skip
# His Table 5a, cut after three digits: q / sqrt(2) for 2 to 10 rows.
CRITICAL = {
    0.05: (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164),
    0.10: (1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920),
}


def ranking(scores, **options):
    n, k = np.shape(scores)
    names = [f"r{i}" for i in range(k)]
    return Ranking(names, [f"b{i}" for i in range(n)], np.asarray(scores, float), **options)


@pytest.fixture(scope="module")
def published():
    return Ranking(NAMES, [f"data {i}" for i in range(14)], AUC)


def test_published_ranks_and_friedman(published):
    np.testing.assert_allclose(published.mean_ranks, [3.143, 2.000, 2.893, 1.964], atol=5e-4)
    found = published.friedman()
    # The paper's 9.28 and 3.69 have no correction for ties: three pairs and one of four.
    correction = 1 - (3 * (2**3 - 2) + (4**3 - 4)) / (14 * 4 * (4**2 - 1))
    chi = correction * found.statistic
    assert chi == pytest.approx(9.28, abs=0.005)
    assert 13 * chi / (14 * 3 - chi) == pytest.approx(3.69, abs=0.005)
    assert found.f_statistic == pytest.approx(13 * found.statistic / (14 * 3 - found.statistic))
    assert found.f_p_value == pytest.approx(stats.f.sf(found.f_statistic, 3, 39))


def test_published_critical_differences(published):
    assert published.critical_difference(0.05) == pytest.approx(1.25, abs=0.005)
    assert published.critical_difference(0.10) == pytest.approx(1.12, abs=0.005)
    assert published.groups(0.05) == [["C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"]]
    # His Figure 1a, at 10 %.
    assert published.groups(0.10) == [["C4.5+m+cf", "C4.5+m", "C4.5+cf"], ["C4.5+cf", "C4.5"]]


@pytest.mark.parametrize("alpha", CRITICAL)
def test_published_critical_values(alpha):
    for k, value in enumerate(CRITICAL[alpha], start=2):
        reach = ranking(np.random.default_rng(k).random((6, k))).critical_difference(alpha)
        assert reach / np.sqrt(k * (k + 1) / 36) == pytest.approx(value, abs=1.1e-3)


def test_published_wilcoxon():
    """Section 3.1.3: T = 12 for C4.5+m against C4.5, below the critical 21 of 5 %."""
    difference = AUC[:, 1] - AUC[:, 0]
    found = stats.wilcoxon(difference, zero_method="zsplit", method="approx")
    assert found.statistic == 12
    assert signed_ranks_p(difference) == pytest.approx(found.pvalue, abs=0.005)
    assert signed_ranks_p(difference) < 0.05


@pytest.mark.parametrize("ties", [False, True])
def test_friedman_is_scipys(ties):
    scores = np.random.default_rng(0).random((9, 5)) + 0.1 * np.arange(5)
    scores = scores.round(1) if ties else scores
    found, wanted = ranking(scores).friedman(), stats.friedmanchisquare(*scores.T)
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.p_value == pytest.approx(wanted.pvalue)


def test_wilcoxon_is_scipys_and_that_of_all_signs():
    rng = np.random.default_rng(1)
    for n in (5, 8, 20):
        values = rng.normal(0.5, size=n)
        assert signed_ranks_p(values) == pytest.approx(
            stats.wilcoxon(values, method="exact").pvalue
        )
    for _ in range(5):
        values = np.append(rng.integers(-2, 5, size=7), 0)
        ranks, known = stats.rankdata(abs(values)), values != 0
        sums = [sum(r for r, up in zip(ranks[known], signs, strict=True) if up)
                for signs in itertools.product((0, 1), repeat=known.sum())]  # fmt: skip
        plus = ranks[values > 0].sum()
        less = min(plus, ranks[known].sum() - plus)
        wanted = min(1, 2 * np.mean(np.array(sums) <= less))
        assert signed_ranks_p(values) == signed_ranks_p(-values) == pytest.approx(wanted)
    assert signed_ranks_p(np.zeros(6)) == 1


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03, 0.5]), [0.09, 0.04, 0.09, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_lower_is_better():
    error = pfl.models.Measure("mse", "lower", False)
    scores = np.arange(15.0).reshape(5, 3)
    assert ranking(scores).mean_ranks.tolist() == [3, 2, 1]
    assert ranking(scores, measure=error).mean_ranks.tolist() == [1, 2, 3]


def test_equal_means_of_single_precision_tie():
    values = np.array([[1 / 7, 2 / 7], [3 / 7, 2 / 7], [2 / 7, 2 / 7]], np.float32)
    means = values.astype(float).mean(axis=0)
    assert means[0] != means[1]
    made = ranking([means] * 5)
    np.testing.assert_array_equal(made.ranks, np.full((5, 2), 1.5))
    ((p, _),) = made.wilcoxon(made.names[0]).values()
    assert p == 1


def test_blocks_of_other_scales():
    scores = np.array([[60_000.0, 50_000.0], *[[0.02, 0.01]] * 4, [0.01 + 1e-9, 0.01]])
    made = ranking(scores)
    np.testing.assert_array_equal(made.ranks, [[1, 2]] * 5 + [[1.5, 1.5]])
    ((p, _),) = made.wilcoxon(made.names[1]).values()
    assert p == 2 / 2**5


@pytest.mark.parametrize("level", [7.0, 70.0])
def test_equal_differences_tie_in_blocks_of_other_sizes(level):
    gains = [1.1, -1.1, 2.0, 3.0, 4.0, 5.0]
    lows = [70.0, level, 70.0, 70.0, 70.0, 70.0]
    made = ranking([[low + gain, low] for low, gain in zip(lows, gains, strict=True)])
    ((p, _),) = made.wilcoxon(made.names[1]).values()
    assert p == 6 / 2**6  # the smallest two share a rank


def test_agreement_and_ties_of_all_blocks():
    same = ranking(np.tile([3.0, 2.0, 1.0], (6, 1))).friedman()
    assert same.statistic == pytest.approx(12) and same.f_statistic == np.inf
    assert same.f_p_value == 0
    assert ranking(np.tile([3.0, 2.0, 1.0], (40, 1))).groups() == []
    none = ranking(np.ones((6, 3))).friedman()
    assert none.statistic == 0 and none.p_value == 1 and none.f_p_value == 1


def test_the_table_and_its_notes(published):
    table = published.table("C4.5")
    assert [row["row"] for row in table.rows] == ["C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"]
    tested = published.wilcoxon("C4.5")
    assert table.rows[1]["p"] == tested["C4.5+m"][0] == signed_ranks_p(AUC[:, 1] - AUC[:, 0])
    pairs = np.array(list(tested.values()))
    assert holm(pairs[:, 0].tolist()) == pairs[:, 1].tolist()
    assert "p" not in table.rows[3]
    text = " ".join(table.notes)
    assert "14 blocks" in text and "never below 0.00012" in text and "correction for 3" in text
    assert "more than 1.25 apart" in text and "Iman and Davenport: F(3, 39) = 4." in text
    assert table.cells[0] == ["Row", "Mean rank", "p vs C4.5", "p, Holm"]
    assert published.table().cells[0] == ["Row", "Mean rank"]
    assert "Wilcoxon" not in " ".join(published.table().notes)
    with pytest.raises(pfl.InputError, match="Unknown baseline"):
        published.table("C4.5m")


def test_the_diagram(published):
    figure = published.plot(0.10)
    (axes,) = figure.axes
    figure.draw_without_rendering()
    texts = [text.get_text() for text in axes.texts]
    assert "critical difference 1.12" in texts and "C4.5+m+cf  1.96" in texts
    assert "3.14  C4.5" in texts
    boxes = [text.get_window_extent() for text in axes.texts]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
    bars = [line for line in axes.get_lines() if line.get_linewidth() == 3]
    assert len(bars) == 2


@pytest.mark.parametrize(("scores", "said"), [
    (np.ones((4, 3)), "Tests need at least 5 data sets or settings that all rows have, got 4"),
    (np.ones((5, 1)), "give at least two"),
    (np.full((5, 2), np.nan), "scores must be finite"),
])  # fmt: skip
def test_refusals(scores, said):
    with pytest.raises(pfl.InputError, match=said):
        ranking(scores)


def test_results_are_compared(tmp_path):
    blocks = {}
    for b in range(5):
        for name, level in (("local", 0.5), ("waffle", 0.6)):
            values = [[level + 0.01 * b, 0.9], [level, np.nan if name == "waffle" else 0.9]]
            write_run(tmp_path / f"{b}" / name, name, finals(*values), [0, 1])
            result = pfl.Result.load(tmp_path / f"{b}" / name)
            blocks.setdefault(f"b{b}", {})[name] = result
    made = pfl.Result.compare(blocks)
    # Client 1 is not scored in every seed of both.
    np.testing.assert_allclose(made.scores[4], [52, 62], rtol=1e-6)
    assert made.mean_ranks.tolist() == [2, 1] and made.wilcoxon("local")["waffle"][0] == 2 / 32
    longer = replace(blocks["b0"]["waffle"], copies_up=np.ones((2, 1, 3, 2, 1)))
    refused = {
        "same rounds; local had 1, waffle 3": blocks | {"b0": blocks["b0"] | {"waffle": longer}},
        "Each block needs the results": blocks | {"b0": {"local": blocks["b0"]["local"]}},
        "got 4": {name: rows for name, rows in blocks.items() if name != "b0"},
        "got 0": {},
        "one measure": blocks
        | {"b0": {name: replace(one, measures=(pfl.models.Measure("f1"),),
                                scores={"personalized/test/f1": one.accuracy()})
                  for name, one in blocks["b0"].items()}},
        "number of settings must be 1": blocks
        | {"b0": {name: replace(one, copies_up=np.ones((2, 2, 1, 2, 1)))
                  for name, one in blocks["b0"].items()}},
    }  # fmt: skip
    for said, rows in refused.items():
        with pytest.raises(pfl.InputError, match=said):
            pfl.Result.compare(rows)
