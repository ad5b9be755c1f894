"""A result as an xarray data set, a pandas table and HTML."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation


@cache
def result():
    federation = toy_federation(dtype="float32", participation=0.6, validation_size=0)
    settings = {"learning_rate": (0.1, 0.3)}
    algorithm = pfl.make_algorithm("feddwa")
    return pfl.simulate(algorithm, federation, 3, seeds=(0, 4), settings=settings, eval_every=2)


@pytest.mark.costly
def test_axes_have_names():
    whole, one = result().to_xarray(), result()
    scores = whole["personalized/test/accuracy"]
    assert scores.dims == ("seed", "setting", "eval_round", "client")
    np.testing.assert_array_equal(scores, one.scores["personalized/test/accuracy"])
    assert whole.eval_round.values.tolist() == one.eval_rounds.tolist() == [2, 3]
    chosen = whole["local_steps"].sel(seed=4, round=3).isel(setting=1)
    np.testing.assert_array_equal(chosen, one.clients["local_steps"][1, 1, 2])
    np.testing.assert_array_equal(whole.learning_rate, one.settings["learning_rate"])
    mixing = whole["mixing"].sel(matrix_round=3, seed=0).isel(setting=0)
    np.testing.assert_array_equal(mixing, one.matrices["mixing"][0, 0, -1])
    np.testing.assert_array_equal(whole.receiver, one.client_ids)
    assert whole["copies_up"].dims[-1] == "block" and whole.attrs["algorithm"] == "feddwa"


def test_one_setting_is_selected():
    whole, one = result(), result().select(learning_rate=0.3)
    assert "learning_rate=0.3" in one.table()
    assert one.summary() == whole.summary(1)
    np.testing.assert_array_equal(one.traffic()["up"], whole.traffic()["up"][:, 1:])
    assert one.gains(one).seeds == (0, 4) and one.matrices["mixing"].shape[:2] == (2, 1)
    for values in ({}, {"learning_rate": 0.2}, {"learning_rates": 0.3}):
        with pytest.raises(pfl.InputError, match=r"learning_rate=0.1; learning_rate=0.3|Did you"):
            whole.select(**values)
    with pytest.raises(pfl.InputError, match="one of a sweep"):
        replace(one, settings={}).select(top_k=5)


@pytest.mark.costly
def test_a_row_for_each_seed_setting_round_and_client():
    frame, one = result().to_pandas(), result()
    assert len(frame) == 2 * 2 * 3 * one.num_clients
    name = "personalized/test/accuracy"
    assert frame.loc[frame["round"] == 1, name].isna().all()
    last = frame[(frame["round"] == 3) & (frame.seed == 4) & np.isclose(frame.learning_rate, 0.3)]
    np.testing.assert_array_equal(last.sort_values("client")[name], one.scores[name][1, 1, -1])
    np.testing.assert_array_equal(
        last.sort_values("client").local_steps, one.clients["local_steps"][1, 1, 2]
    )


@pytest.mark.costly
def test_a_notebook_shows_the_table():
    text = result()._repr_html_()
    assert text.startswith("<p>feddwa: ") and text.index("<table") < text.index("With 2 seeds")
    assert "<table" in text and "feddwa: " in text and "learning_rate=0.1" in text
    assert replace(result(), scores={})._repr_html_().startswith("<p>Result(feddwa")


def test_matrices_are_drawn():
    figure = result().plot_mixing(seed=4, setting=1)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:3] == [f"round {r}" for r in result().matrix_rounds]
    assert figure.get_suptitle() == "feddwa, learning_rate=0.3: mixing, seed 4"
    last = result().plot_mixing(round=3)
    assert [axes.get_title() for axes in last.axes[:1]] == ["round 3"] and len(last.axes) == 2
    for name, given in (("name", "mixin"), ("seed", 7), ("setting", 2), ("round", 9)):
        with pytest.raises(pfl.InputError, match=name if name != "name" else "mixing"):
            result().plot_mixing(**{name: given})


def test_names_that_are_taken_get_a_prefix():
    one = result()
    extra = dict.fromkeys(("learning_rate", "round", "loss"), one.clients["participated"])
    scalars = {**one.scalars, "loss": np.arange(12.0).reshape(2, 2, 3)}
    made = replace(one, clients={**one.clients, **extra}, scalars=scalars)
    whole = made.to_xarray()
    assert whole["setting/learning_rate"].values.tolist() == pytest.approx([0.1, 0.3])
    assert (
        whole["record/round"].dims == whole["loss"].dims == ("seed", "setting", "round", "client")
    )
    assert whole["scalar/loss"].dims == ("seed", "setting", "round")
    frame = made.to_pandas()
    assert {"setting/learning_rate", "learning_rate", "record/round", "loss"} <= set(frame)


def test_a_result_without_scores_has_records():
    frame = replace(result(), scores={}).to_pandas()
    assert len(frame) == 2 * 2 * 3 * 5 and "local_steps" in frame
