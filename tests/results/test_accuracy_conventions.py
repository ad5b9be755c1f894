"""Numbers that stand for a run: headlines, where scores are missing."""

from functools import cache

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.results.accuracy_conventions import one_number
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils.metric_names import LOWER, Measure

NAN = np.nan


@cache
def leaving():
    """Fedavg whose only scored client leaves after two of four rounds."""
    federation = toy_federation(dtype="float32", departures={1: 2})
    return pfl.simulate(pfl.make_algorithm("fedavg"), federation, 4, score_clients=[1])


@pytest.mark.parametrize(
    ("score", "wanted"),
    [("final", [0.1, NAN, 0.4]), ("best", [0.5, 0.3, 0.4]), ("last_tenth", [0.1, NAN, 0.4])],
)
def test_a_run_without_a_last_score_changes_no_other(score, wanted):
    curves = np.array([[0.5, 0.2, 0.1], [0.3, NAN, NAN], [NAN, NAN, 0.4]])
    np.testing.assert_array_equal(one_number(curves, score), wanted)
    errors = Measure("mse", LOWER)
    best = [0.1, 0.3, 0.4] if score == "best" else wanted
    np.testing.assert_array_equal(one_number(curves, score, errors), best)


def test_the_last_tenth_is_of_the_scored_rounds():
    curves = np.full((2, 40), NAN)
    curves[:, 1::2] = np.arange(20)
    assert one_number(curves, "last_tenth").tolist() == [18.5, 18.5]
    curves[:, -1] = NAN
    assert np.isnan(one_number(curves, "last_tenth")).all()


@pytest.mark.costly
def test_no_earlier_round_stands_in_for_the_last():
    result = leaving()
    accuracy = result.summary()["accuracy"]
    assert np.isnan(result.headline()) and np.isnan(accuracy["final_mean"])
    assert np.isnan(result.pooled()[0, 0]).tolist() == [False, False, True, True]
    assert np.isnan(accuracy["final_pooled"]) and np.isnan(result.headline("flower"))
    assert result.headline("best") == accuracy["best_mean"] == result.curve()[0, 0, :2].max()


@cache
def unscored():
    """Fedavg that was stopped before its first scored round."""
    federation = toy_federation(dtype="float32")
    algorithm = pfl.make_algorithm("fedavg")
    return pfl.simulate(algorithm, federation, 3, eval_every=5, stop=lambda progress: True)


@pytest.mark.costly
def test_a_run_without_scored_rounds():
    result = unscored()
    calls = result.headline, result.worst_decile, result.plot, result.at_best_validation
    for call in (*calls, result.summary, result.table):
        with pytest.raises(pfl.InputError, match="No round of this result was scored"):
            call()


@pytest.mark.costly
def test_a_model_that_was_not_scored_yet(recwarn):
    adapt = pfl.Adaptation(when="last")
    stop = lambda progress: progress.round >= 2  # noqa: E731
    federation = toy_federation(dtype="float32")
    result = pfl.simulate(pfl.make_algorithm("local"), federation, 4, adapt=adapt, stop=stop)
    assert np.isnan(result.headline(model="trained"))
    assert "Mean over no client of 5." in result.table("trained")
    assert not [one for one in recwarn if "slice" in str(one.message)]


@pytest.mark.costly
@pytest.mark.parametrize(
    "name", ["summary", "traffic_mb_per_client_round", "computation", "changes", "plot_mixing"]
)
@pytest.mark.parametrize("setting", [1, -1])
def test_settings_that_are_not_there(name, setting):
    with pytest.raises(pfl.InputError, match=f"setting must be in 0..0, got {setting}"):
        getattr(leaving(), name)(setting=setting)


@pytest.mark.costly
def test_rounds_with_fewer_validated_clients_are_not_the_best():
    federation = toy_federation(
        arrivals=dict.fromkeys((1, 2, 3, 4), 5), validation_size=6, dtype="float32", seed=1
    )
    result = pfl.simulate(pfl.make_algorithm("local"), federation, 10)
    chosen = result.at_best_validation()[0, 0]
    np.testing.assert_array_equal(np.isnan(chosen), result.test_sizes == 0)
    among = result.curve(split="validation")[0, 0, 4:]
    best = 4 + int(np.argmax(among))
    np.testing.assert_array_equal(chosen, result.accuracy()[0, 0, best])
    assert np.isnan(result.accuracy()[0, 0, 3]).any()  # where they are not there yet


def test_comparisons_need_scored_rounds():
    result = unscored()
    with pytest.raises(pfl.InputError, match="No round of this result was scored"):
        result.gains(result)
    with pytest.raises(pfl.InputError, match="No round of this result was scored"):
        pfl.Result.compare({str(k): {"a": result, "b": result} for k in range(5)})


def test_blocks_and_rows_may_be_numbers():
    whole = pfl.simulate(pfl.make_algorithm("fedavg"), toy_federation(dtype="float32"), 1)
    ranking = pfl.Result.compare({0.1 * k: {1: whole, 2: whole} for k in range(5)})
    assert ranking.names == ["1", "2"] and ranking.blocks[1] == "0.1"
    assert ranking.table().to_markdown()
