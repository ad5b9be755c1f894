"""A simulation from outside: its result, sweeps, chunks, progress and files."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import InputError, Result
from fedjax_pfl.engine.metrics_buffer import MetricsBuffer
from fedjax_pfl.results.result_files import digest
from fedjax_pfl.testing.toys import toy_federation
from tests.engine.simulated import simulate

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.fixture(scope="module")
def result():
    with jax.enable_x64(True):
        return simulate()


def test_simulate_two_seeds_axes_of_a_result(result):
    assert result.accuracy().shape == (2, 1, 3, 5)
    assert result.clients["train_loss"].shape == (2, 1, 3, 5)
    assert result.copies_up.shape == result.copies_down.shape == (2, 1, 3, 5, 2)
    assert result.rounds == 3 and result.num_settings == 1 and result.seeds == (0, 1)
    np.testing.assert_array_equal(result.eval_rounds, [1, 2, 3])
    np.testing.assert_array_equal(result.train_sizes, [7, 3, 1, 10, 4])
    np.testing.assert_array_equal(result.test_sizes, [3, 2, 1, 4, 0])
    assert result.num_parameters == 43 and result.blocks == ("fc_0", "head")
    assert result.diverged() == []
    assert (result.accuracy()[0] != result.accuracy()[1])[..., :4].any()


def test_summary(result):
    accuracy = result.accuracy()[:, 0, -1, :4]
    summary = result.summary()
    shown = summary["accuracy"]
    np.testing.assert_allclose(shown["final_mean"], accuracy.mean())
    np.testing.assert_allclose(shown["final_std_over_seeds"], accuracy.mean(1).std(ddof=1))
    np.testing.assert_allclose(shown["final_std_over_clients"], accuracy.std(1).mean())
    np.testing.assert_allclose(shown["final_pooled"], (accuracy @ [3, 2, 1, 4] / 10).mean())
    np.testing.assert_allclose(shown["worst_decile"], accuracy.min(1).mean())
    np.testing.assert_allclose(shown["best_mean"], result.curve()[:, 0].max(1).mean())
    assert summary["rounds"] == 3 and summary["diverged_clients"] == []
    assert f"{shown['final_mean']:.4f}" in repr(result)


def test_best_mean_is_of_the_best_round_not_of_every_clients_best(result):
    accuracy = np.full((2, 1, 3, 5), np.nan)
    accuracy[:, 0, :, :2] = [[0.9, 0.1], [0.4, 0.8], [0.2, 0.9]]  # means 0.5, 0.6, 0.55
    accuracy[1] *= 0.5
    crafted = replace(result, scores={"personalized/test/accuracy": accuracy})
    shown = crafted.summary()["accuracy"]
    np.testing.assert_allclose(shown["best_mean"], (0.6 + 0.3) / 2)  # not (0.9 + 0.9) / 2 = 0.9
    np.testing.assert_allclose(shown["final_mean"], (0.55 + 0.275) / 2)


def test_participant_mean(result):
    accuracy = np.full((2, 1, 3, 5), np.nan)
    accuracy[..., :4] = [0.1, 0.2, 0.4, 0.8]
    accuracy[1] /= 2
    there = np.zeros((2, 1, 4, 5), bool)
    there[:, :, 0, [0, 1]] = there[:, :, 1, [1, 2]] = there[:, :, 2, 4] = there[:, :, 3, [2, 3]] = 1
    crafted = replace(
        result,
        scores={"personalized/test/accuracy": accuracy},
        clients={"participated": there},
        eval_rounds=np.array([1, 3, 4]),
    )
    half = np.array([[1], [0.5]])
    np.testing.assert_allclose(crafted.participant_mean()[:, 0], half * [0.15, np.nan, 0.6])
    following = half * [0.3, 0.6, np.nan]  # rounds 2 and 4
    np.testing.assert_allclose(crafted.participant_mean(next_round=True)[:, 0], following)
    pooled = half * [(0.2 * 2 + 0.4 * 1) / 3, (0.4 * 1 + 0.8 * 4) / 5, np.nan]
    after = crafted.participant_mean(next_round=True, pooled=True)
    np.testing.assert_allclose(after[:, 0], pooled)
    np.testing.assert_allclose(result.participant_mean(), result.curve())  # everybody, always


def test_seconds_per_round_are_a_median_over_whole_periods_of_evaluation():
    collector = MetricsBuffer(eval_every=2, rounds=7, matrix_rounds=())
    empty = {"scores": {}}
    for length, seconds in ((1, 1.0), (1, 5.0), (2, 8.0), (2, 2.0), (1, 99.0)):
        collector = collector.add(length, empty, {}, seconds)
    assert collector.paces == (1, 5, 4, 4, 1, 1, 99)
    assert collector.seconds_per_round() == 3  # the median of 3, 4 and 1; round 7 is half a period


@pytest.mark.costly
def test_scores_of_chosen_clients(result):
    some = simulate(score_clients=(3, 0))
    for name, values in result.scores.items():
        chosen = some.scores[name]
        np.testing.assert_array_equal(chosen[..., [0, 3]], values[..., [0, 3]])
        assert np.isnan(chosen[..., [1, 2, 4]]).all()
    accuracy = result.accuracy()[..., [0, 3]]
    np.testing.assert_allclose(some.curve(), accuracy.mean(-1))
    shown = some.summary()["accuracy"]
    np.testing.assert_allclose(shown["final_mean"], accuracy[:, 0, -1].mean())
    np.testing.assert_allclose(shown["worst_decile"], accuracy[:, 0, -1].min(1).mean())
    np.testing.assert_allclose(shown["final_pooled"], (accuracy[:, 0, -1] @ [3, 4] / 7).mean())


def test_unknown_scores_name_the_known(result):
    with pytest.raises(InputError, match=r"No scores 'globel/test/accuracy'.*global/test/accuracy"):
        result.accuracy("globel")


def test_a_result_without_test_samples_has_a_repr(result):
    scores = {k: v for k, v in result.scores.items() if "/validation/" in k}
    assert "fedavg" in repr(replace(result, scores=scores))


@pytest.mark.costly
def test_settings_and_seeds_are_the_single_runs():
    """Four runs each time, which are one program."""
    both = [{"top_k": 1, "learning_rate": 0.3}, {"top_k": 5, "learning_rate": 0.1}]
    federation = {"validation_size": 0}
    swept = pfl.simulate(
        pfl.make_algorithm("feddwa"),
        toy_federation(**federation),
        3,
        seeds=(5, 1),
        settings=both,
        chunk=8,
    )
    assert swept.num_settings == 2
    np.testing.assert_array_equal(swept.settings["top_k"], [1, 5])
    for h, (top_k, rate) in enumerate(((1, 0.3), (5, 0.1))):
        alone = simulate(
            "feddwa",
            settings={"top_k": top_k},
            seeds=(1, 5, 0, 2),
            federation=toy_federation(learning_rate=rate, **federation),
        )
        for name, values in alone.scores.items():
            np.testing.assert_allclose(swept.scores[name][::-1, h], values[:2, 0], 1e-12)
        mixing = alone.matrices["mixing"][:2]
        np.testing.assert_allclose(swept.matrices["mixing"][::-1, h], mixing[:, 0], 1e-9, 1e-12)
    assert (swept.matrices["mixing"][:, 0] > 0).sum() == 2 * 3 * 5  # K = 1: one a row


def test_swept_decay_of_the_learning_rate():
    swept = pfl.simulate(
        pfl.make_algorithm("fedavg"),
        toy_federation(),
        2,
        settings={"learning_rate_decay": (1.0, 0.5)},
        chunk=8,
    )
    first, second = swept.scores["personalized/test/loss"][0, :, 0]
    np.testing.assert_array_equal(first, second)  # decay begins with the second round
    first, second = swept.scores["personalized/test/loss"][0, :, 1]
    assert (first != second)[:4].all()


def test_eval_rounds_and_matrix_rounds(result):
    some = simulate(rounds=3, eval_every=2, matrix_rounds=(3, 1, 3))
    np.testing.assert_array_equal(some.eval_rounds, [2, 3])
    np.testing.assert_array_equal(some.accuracy(), result.accuracy()[:, :, 1:])
    np.testing.assert_array_equal(some.matrix_rounds, [1, 3])
    assert some.matrices["mixing"].shape == (2, 1, 2, 1, 5)
    np.testing.assert_allclose(
        some.matrices["mixing"], np.broadcast_to(np.array([7, 3, 1, 10, 4]) / 25, (2, 1, 2, 1, 5))
    )
    np.testing.assert_array_equal(result.matrix_rounds, [1, 2, 3])
    only_last = simulate(rounds=3, eval_every=50)
    np.testing.assert_array_equal(only_last.eval_rounds, [3])


def test_no_matrices_at_all():
    assert simulate(rounds=1, matrix_rounds=()).matrices == {}


def test_chunks_without_a_limit_of_time():
    assert simulate(rounds=2, chunk_seconds=float("inf")).rounds == 2


def test_progress_tells_the_last_accuracy_that_was_scored(result):
    told = []
    simulate(chunk_seconds=0, eval_every=2, progress=told.append)
    wanted = np.nanmean(result.accuracy(), axis=(0, 1, 3))
    assert [p.round for p in told] == [1, 2, 3] and told[0].accuracy is None
    assert {p.rounds for p in told} == {3} and 0 < told[0].seconds < told[1].seconds
    np.testing.assert_allclose([p.accuracy for p in told[1:]], wanted[1:])


def test_diverged_names_seed_setting_round_and_permanent_id():
    order = np.array([3, 0, 4, 1, 2])  # client 1 is in row 3
    bad = simulate(rounds=2, federation=toy_federation(diverging=1, order=order))
    assert bad.diverged() == [(0, 0, 1, 1), (0, 0, 2, 1), (1, 0, 1, 1), (1, 0, 2, 1)]
    assert bad.summary()["diverged_clients"] == [1]
    assert np.isfinite(bad.scores["personalized/validation/loss"][..., [0, 1, 2, 4]]).all()


def test_save_and_load(result, tmp_path):
    result.save(tmp_path / "run")
    loaded = Result.load(tmp_path / "run")
    for name, value in vars(result).items():
        read = getattr(loaded, name)
        if name == "final":
            assert read is None
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(read, value)
            assert read.dtype == value.dtype
        elif isinstance(value, dict) and name != "hyperparameters":
            assert read.keys() == value.keys()
            for key in value:
                np.testing.assert_array_equal(read[key], value[key])
        else:
            assert read == value, name
    assert loaded.summary() == result.summary()


def test_results_from_before_steps_were_counted(result, tmp_path):
    clients = {name: value for name, value in result.clients.items() if name != "local_steps"}
    replace(result, clients=clients).save(tmp_path)
    facts = json.loads((tmp_path / "result.json").read_text())
    del facts["flops_per_step"], facts["digest"]
    with np.load(tmp_path / "result.npz") as arrays:
        facts["digest"] = digest(facts, dict(arrays))
    (tmp_path / "result.json").write_text(json.dumps(facts))
    loaded = Result.load(tmp_path)
    assert loaded.flops() is None
    assert set(loaded.computation().values()) == {None}
    assert loaded.summary()["accuracy"] == result.summary()["accuracy"]


@pytest.mark.parametrize("name", ["result.json", "result.npz"])
def test_save_never_overwrites_a_file(result, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"has a {name} already"):
        result.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_functions_among_hyperparameters_are_saved_by_name(result, tmp_path):
    replace(result, hyperparameters={"omega": digest}).save(tmp_path)
    assert Result.load(tmp_path).hyperparameters == {
        "omega": "fedjax_pfl.results.result_files.digest"
    }


def test_load_without_a_saved_result(tmp_path):
    with pytest.raises(InputError, match=r"No saved result can be read from .*: No file .*json\.$"):
        Result.load(tmp_path)


def test_half_precision_arrays_survive(result, tmp_path):
    loss = np.asarray(jnp.ones((2, 1, 3, 5), jnp.bfloat16))
    replace(result, clients=result.clients | {"train_loss": loss}).save(tmp_path)
    np.testing.assert_array_equal(Result.load(tmp_path).clients["train_loss"], 1.0)
