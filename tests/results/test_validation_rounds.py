"""Scores in the rounds that are best on validation samples, compared with plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.figures.loading import read
from experiments.grid.study_report import Report
from experiments.outputs import comparison_table
from fedjax_pfl.utils.metric_names import LOWER, Measure
from tests.experiments.written_runs import rewrite, write_run

TEST, VALIDATION = "personalized/test/accuracy", "personalized/validation/accuracy"
SEEDS, ROUNDS, CLIENTS = 2, 5, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Few distinct values, so that rounds are equal; client 2 has no validation samples."""
    rng = np.random.default_rng(3)
    test = rng.random((SEEDS, ROUNDS, CLIENTS)).astype(np.float32)
    validation = rng.integers(0, 3, (SEEDS, 1, ROUNDS, CLIENTS)).astype(np.float32) / 2
    validation[..., 2] = np.nan
    folder = tmp_path_factory.mktemp("rounds") / "fedavg"
    write_run(folder, "fedavg", test, [0, 1])
    rewrite(folder, scores={TEST: test[:, None], VALIDATION: validation})
    return folder


def first_best(scores, higher):
    """Return the first round with the best of the known scores, or None."""
    best = None
    for number, score in enumerate(scores):
        if math.isnan(score):
            continue
        if best is None or (score > scores[best] if higher else score < scores[best]):
            best = number
    return best


def expected(result, per_client, higher=True):
    name = result.measures[0].name
    test = result.scores[f"personalized/test/{name}"][:, 0]
    validation = result.scores[f"personalized/validation/{name}"][:, 0]
    found = np.full((SEEDS, CLIENTS), np.nan)
    for seed in range(SEEDS):
        means = [np.nanmean(one) if not np.isnan(one).all() else np.nan for one in validation[seed]]
        shared = first_best(means, higher)
        for client in range(CLIENTS):
            own = first_best(validation[seed, :, client], higher) if per_client else None
            at = shared if own is None else own
            found[seed, client] = np.nan if at is None else test[seed, at, client]
    return found


@pytest.mark.parametrize("per_client", [False, True])
def test_every_client(folder, per_client):
    result = pfl.Result.load(folder)
    found = result.at_best_validation(per_client)
    assert found.shape == (SEEDS, 1, CLIENTS)
    np.testing.assert_array_equal(found[:, 0], expected(result, per_client))
    # Neither the last round's nor the best on test samples.
    for other in (result.values()[:, :, -1], np.nanmax(result.values(), axis=2)):
        assert not np.array_equal(found, other)


@pytest.mark.parametrize("per_client", [False, True])
def test_errors_and_rounds_without_scores(folder, per_client):
    """Lower errors are better; a run that was never scored has no round."""
    made = pfl.Result.load(folder)
    test, validation = made.scores[TEST].copy(), made.scores[VALIDATION].copy()
    validation[0, :, :2] = np.nan
    validation[1] = np.nan
    scores = {TEST.replace("accuracy", "mse"): test,
              VALIDATION.replace("accuracy", "mse"): validation}  # fmt: skip
    result = replace(made, scores=scores, measures=(Measure("mse", LOWER, fraction=False),))
    found = result.at_best_validation(per_client)[:, 0]
    np.testing.assert_array_equal(found, expected(result, per_client, higher=False))
    assert np.isnan(found[1]).all() and not np.isnan(found[0]).any()


def test_another_metric_is_of_the_same_round(folder):
    made = pfl.Result.load(folder)
    scores = made.scores | {TEST.replace("accuracy", "auc"): -made.scores[TEST]}
    result = replace(made, scores=scores, measures=(*made.measures, Measure("auc")))
    np.testing.assert_array_equal(result.at_best_validation(metric="auc"),
                                  -result.at_best_validation())  # fmt: skip


def test_tables(folder):
    result = pfl.Result.load(folder)
    shared, own = (100 * expected(result, way).mean() for way in (False, True))
    table = comparison_table.comparison({"fedavg": result})
    (row,) = table.rows
    assert [100 * row["validated"], 100 * row["own_validated"]] == pytest.approx([shared, own])
    heading = table.to_markdown().splitlines()[0]
    assert "| Best on test % | Validation round % | Own validation round % |" in heading
    assert "personalized_test_accuracy_own_best_validation_round" in table.to_csv()
    assert "Validation round: accuracy on test" in comparison_table.notes({"fedavg": result})
    run = read(folder)
    report = Report({("fedavg", "a"): run}, ("validation_round", "own_validation_round"))
    means = [report.values(run, name)[1].mean() for name in report.measures]
    assert means == pytest.approx([shared, own])
    assert "each client's round that is best" in report.heading("own_validation_round")


def test_without_validation_samples(folder):
    made = pfl.Result.load(folder)
    result = replace(made, scores={TEST: made.scores[TEST]})
    assert "Validation round" not in comparison_table.comparison({"a": result}).to_markdown()
    assert "Validation round" not in comparison_table.notes({"a": result})
    with pytest.raises(pfl.InputError, match=r"/validation/accuracy'.*split_validation\(0"):
        result.at_best_validation()
