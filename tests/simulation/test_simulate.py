"""A simulation from outside: its refusals, sweeps, counts, reports, files and callbacks."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Adaptation, InputError, Result
from fedjax_pfl.data.sources.registry import dataset_from_arrays
from fedjax_pfl.simulation.collector import Collector
from fedjax_pfl.simulation.runs import make_runs
from fedjax_pfl.testing.toys import SEEDS, toy_federation
from tests.algorithms.field import TwoModels

MODEL_BYTES = 8 * (4 * 5 + 5 + 5 * 3 + 3)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def simulate(name="fedavg", rounds=3, *, settings=None, federation=None, **options):
    """Two runs in chunks of at most eight rounds: the programs are those of the shared suite."""
    options = {"seeds": SEEDS, "chunk": 8} | options
    federation = toy_federation() if federation is None else federation
    return pfl.simulate(pfl.make_algorithm(name, settings), federation, rounds, **options)


@pytest.fixture(scope="module")
def result():
    with jax.enable_x64(True):
        return simulate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": 2.0}, r"rounds must be a whole number of at least 1, got 2\.0"),
        ({"rounds": True}, "rounds must be a whole number"),
        ({"eval_every": 0}, r"eval_every must be .*at least 1, got 0"),
        ({"chunk": 0}, r"chunk must be .*at least 1, got 0"),
        ({"seeds": ()}, "seeds must be one or more whole numbers"),
        ({"seeds": (0, -1)}, "seeds must be one or more whole numbers"),
        ({"seeds": (0.5,)}, "seeds must be one or more whole numbers"),
        ({"seeds": (2**31,)}, "seeds must be one or more whole numbers"),
        ({"matrix_rounds": (0, 1)}, r"matrix_rounds must be rounds in 1\.\.3, got \[0\]"),
        ({"matrix_rounds": (4,)}, r"matrix_rounds must be rounds in 1\.\.3, got \[4\]"),
        ({"adapt": Adaptation(steps=-1)}, r"adapt_steps must be .*at least 0"),
    ],
)
def test_arguments_that_are_refused(options, message):
    with pytest.raises(InputError, match=message) as error:
        simulate(**{"rounds": 3} | options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topk": (1,)}, "Unknown setting of 'feddwa' 'topk'. Did you mean 'top_k'"),
        ({"guidance": ("last",)}, "'guidance' of 'feddwa' is part of the program's structure"),
        ({"top_k": (1, 2), "learning_rate": (0.1,)}, "settings must be lists of equal length"),
        ({"top_k": ()}, "setting 'top_k' must be at least one value"),
        ({"top_k": (1, 0)}, "top_k must be at least 1, got 0"),
        ({"learning_rate": (0.1, -0.1)}, "learning_rate must be"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        pfl.simulate(pfl.make_algorithm("feddwa"), toy_federation(), 1, settings=settings)


def runs(algorithm, **settings):
    return make_runs(algorithm, toy_federation(), (0,), settings)


@pytest.mark.parametrize("decay", [2.0, 0.0, -1.0])
def test_swept_decays_are_checked(decay):
    with pytest.raises(InputError, match="learning_rate_decay must be in"):
        runs(pfl.make_algorithm("feddwa"), learning_rate_decay=(decay,))


def test_swept_whole_numbers_are_whole():
    with pytest.raises(InputError, match="whole number"):
        runs(pfl.make_algorithm("feddwa"), top_k=(2.5,))


def test_whole_numbers_that_do_not_fit_are_refused():
    with pytest.raises(InputError):
        runs(pfl.make_algorithm("feddwa", {"top_k": 2**31}))


def test_infinite_whole_numbers_are_refused():
    with pytest.raises(InputError, match=r"feddwa\.top_k must be a whole number"):
        pfl.make_algorithm("feddwa", {"top_k": float("inf")})


def test_swept_floats_given_as_whole_numbers_are_floats():
    assert runs(TwoModels(), alpha=(0, 1)).algorithm.alpha.dtype == np.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": -0.1}, r"learning_rate must be .* got -0\.1"),
        ({"learning_rate": float("nan")}, r"learning_rate must be .* got nan"),
        ({"learning_rate_decay": 1.5}, r"learning_rate_decay must be in \(0, 1\], got 1\.5"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"local_epochs": -1}, "local_epochs must be a whole number of at least 0, got -1"),
        ({"local_steps": -1}, "local_steps must be a whole number of at least 0, got -1"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1\.0"),
        ({"weight_decay": -1}, "weight_decay must be at least 0, got -1"),
        ({"eval_batch_size": 0}, "eval_batch_size must be a whole number of at least 1, got 0"),
        ({"participation": 0}, "participation must be a fraction"),
        ({"input_scaling": "halve"}, "Unknown input scaling 'halve'. Did you mean 'half'"),
        ({"client_execution": "maps"}, "client_execution must be one of"),
        ({"model": "mpl", "initializer": "torch"}, "Unknown model 'mpl'. Did you mean 'mlp'"),
        ({"model": "mlp", "initializer": "touch"}, "Unknown initializer 'touch'. Did you mean"),
    ],
)
def test_federations_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        toy_federation(**options)


def federate(**options):
    """Two clients with two samples each."""
    dataset = dataset_from_arrays("six", np.zeros((6, 4), np.float32), np.arange(6) % 3)
    partition = pfl.Partition.from_lists([[0, 1], [2, 3]], [[4], [5]])
    return pfl.federate(dataset, partition, "softmax", dtype="float64", **options)


@pytest.mark.parametrize("ids", [(1, 1), (1,), (1, 2, 3)])
def test_client_ids_are_distinct(ids):
    with pytest.raises(InputError, match="client_ids must be"):
        federate(client_ids=np.array(ids))


@pytest.mark.parametrize("ids", [(0.2, 0.7), (0, 2**32)])
def test_client_ids_are_integers_of_32_bits(ids):
    with pytest.raises(InputError, match="client_ids must be"):
        federate(client_ids=np.array(ids))


@pytest.mark.parametrize("name", ["eval_batch_size", "batch_size", "local_epochs"])
def test_whole_numbers_of_a_federation(name):
    with pytest.raises(InputError):
        federate(**{name: 1.5})


@pytest.mark.parametrize("name", ["participation", "drop_last"])
@pytest.mark.parametrize("given", [np.ones((2, 2)), [1, 2], "x"])
def test_options_of_a_federation_that_are_none(name, given):
    with pytest.raises(InputError, match=rf"^{name.removesuffix('_fraction')} must be"):
        federate(batch_order="partition", **{name: given})


def test_an_optax_optimizer_in_place_of_its_factory():
    with pytest.raises(InputError, match="optimizer must be"):
        federate(optimizer=optax.sgd(0.1))
    with pytest.raises(InputError, match=r"optimizer must be .*, got 'ndarray'"):
        federate(optimizer=np.zeros(3))


def test_axes_of_a_result(result):
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
    accuracy[:, 0, :, :2] = [[0.9, 0.1], [0.4, 0.8], [0.2, 0.9]]  # means .5, .6, .55
    accuracy[1] *= 0.5
    crafted = replace(result, scores={"personalized/test/accuracy": accuracy})
    shown = crafted.summary()["accuracy"]
    np.testing.assert_allclose(shown["best_mean"], (0.6 + 0.3) / 2)  # not (.9 + .9) / 2 = .9
    np.testing.assert_allclose(shown["final_mean"], (0.55 + 0.275) / 2)


def test_accuracy_over_those_who_take_part(result):
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
    np.testing.assert_allclose(crafted.participants()[:, 0], half * [0.15, np.nan, 0.6])
    coming = half * [0.3, 0.6, np.nan]  # rounds 2 and 4
    np.testing.assert_allclose(crafted.participants(coming=True)[:, 0], coming)
    pooled = half * [(0.2 * 2 + 0.4 * 1) / 3, (0.4 * 1 + 0.8 * 4) / 5, np.nan]
    np.testing.assert_allclose(crafted.participants(coming=True, pooled=True)[:, 0], pooled)
    np.testing.assert_allclose(result.participants(), result.curve())  # everybody, always


def test_seconds_per_round_are_a_median_over_whole_periods_of_evaluation():
    collector = Collector(eval_every=2, rounds=7, matrix_rounds=())
    empty = {"scores": {}}
    for length, seconds in ((1, 1.0), (1, 5.0), (2, 8.0), (2, 2.0), (1, 99.0)):
        collector.add(length, empty, {}, seconds)
    assert collector.paces == [1, 5, 4, 4, 1, 1, 99]
    assert collector.seconds_per_round() == 3  # the median of 3, 4 and 1; round 7 is half a period


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


@pytest.mark.parametrize(
    ("algorithm", "clients", "message"),
    [
        ("fedavg", (0, 7), r"score_clients must be clients in 0\.\.4, got \[7\]"),
        ("fedavg", (0.5,), r"score_clients must be clients in 0\.\.4, got \[0\.5\]"),
        ("fedavg", (), "score_clients must be at least one client"),
        ("fedavg", (4,), r"score_clients must be clients with test samples, got \[4\]"),
        ("waffle", (0, 3), r"clients that the algorithm makes a model for, got \[3\]"),
    ],
)
def test_clients_that_can_not_be_scored(algorithm, clients, message):
    with pytest.raises(InputError, match=message) as error:
        simulate(algorithm, score_clients=clients)
    assert "\n" not in str(error.value)


def test_scored_clients_are_named_by_their_permanent_ids():
    federation = toy_federation(order=np.array([3, 0, 4, 1, 2]))
    pfl.check_simulation(pfl.make_algorithm("waffle", {"alice": 1}), federation, score_clients=(1,))
    with pytest.raises(InputError, match=r"with test samples, got \[4\]"):
        pfl.check_simulation(pfl.make_algorithm("fedavg"), federation, score_clients=(3, 4))


def test_swept_values_are_checked_against_the_federation():
    with pytest.raises(InputError, match=r"alice must be a client in 0\.\.4, got 9"):
        pfl.check_simulation(
            pfl.make_algorithm("waffle"), toy_federation(), settings={"alice": (0, 9)}
        )


def test_unknown_scores_name_the_known(result):
    with pytest.raises(InputError, match=r"No scores 'globel/test/accuracy'.*global/test/accuracy"):
        result.accuracy("globel")


def test_a_result_without_test_samples_has_a_repr(result):
    scores = {k: v for k, v in result.scores.items() if "/validation/" in k}
    assert "fedavg" in repr(replace(result, scores=scores))


def test_settings_and_seeds_are_the_single_runs():
    both = {"top_k": (1, 5), "learning_rate": (0.3, 0.1)}
    swept = pfl.simulate(
        pfl.make_algorithm("feddwa"), toy_federation(), 3, seeds=(5, 1), settings=both, chunk=8
    )
    assert swept.num_settings == 2
    np.testing.assert_array_equal(swept.settings["top_k"], [1, 5])
    for h, (top_k, rate) in enumerate(((1, 0.3), (5, 0.1))):
        alone = simulate(
            "feddwa",
            settings={"top_k": top_k},
            seeds=(1, 5),
            federation=toy_federation(learning_rate=rate),
        )
        for name, values in alone.scores.items():
            np.testing.assert_allclose(swept.scores[name][::-1, h], values[:, 0], 1e-12)
        mixing = alone.matrices["mixing"]
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


def test_rounds_one_by_one_and_all_at_once_are_equal_to_the_bit(result):
    told = []
    single = simulate(chunk_seconds=0, progress=told.append, matrix_rounds=(3,))
    whole = simulate(chunk_seconds=1e9, matrix_rounds=(3,))
    narrow = simulate(chunk=1)
    for other in (single, whole, narrow):
        for name, values in result.scores.items():
            np.testing.assert_array_equal(other.scores[name], values)
        for name, values in result.clients.items():
            np.testing.assert_array_equal(other.clients[name], values)
        mine, theirs = (jax.tree.leaves(r.final.states) for r in (result, other))
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    assert [p.round for p in told] == [1, 2, 3] and {p.rounds for p in told} == {3}
    wanted = np.nanmean(result.accuracy(), axis=(0, 1, 3))
    np.testing.assert_allclose([p.accuracy for p in told], wanted)
    seconds = [p.seconds for p in told]
    assert seconds == sorted(seconds) and seconds[0] > 0


def test_progress_tells_the_last_accuracy_that_was_scored(result):
    told = []
    simulate(chunk_seconds=0, eval_every=2, progress=told.append)
    wanted = np.nanmean(result.accuracy(), axis=(0, 1, 3))
    assert [p.round for p in told] == [1, 2, 3] and told[0].accuracy is None
    np.testing.assert_allclose([p.accuracy for p in told[1:]], wanted[1:])


def test_diverged_names_seed_setting_round_and_permanent_id():
    order = np.array([3, 0, 4, 1, 2])  # client 1 is in row 3
    bad = simulate(rounds=2, federation=toy_federation(diverging=1, order=order))
    assert bad.diverged() == [(0, 0, 1, 1), (0, 0, 2, 1), (1, 0, 1, 1), (1, 0, 2, 1)]
    assert bad.summary()["diverged_clients"] == [1]
    assert np.isfinite(bad.scores["personalized/validation/loss"][..., [0, 1, 2, 4]]).all()


@pytest.mark.parametrize(
    ("name", "guidance", "up", "down", "passes"),
    [
        ("fedavg", None, 1, 1, 1),
        ("local", None, 0, 0, 1),
        ("feddwa", "epochs", 2, 1, 2),  # twice FedAvg's computation, as in the paper's Table 5
        pytest.param("feddwa", "last", 1, 1, 1, marks=pytest.mark.slow),
    ],
)
def test_traffic_and_computation(name, guidance, up, down, passes):
    settings = {"guidance": guidance} if guidance else None
    run = pfl.simulate(
        pfl.make_algorithm(name, settings), toy_federation(), 2, seeds=SEEDS, chunk=8
    )
    traffic = run.traffic()
    assert traffic["up"].dtype == np.int64 and traffic["up"].shape == (2, 1, 2, 5)
    assert (traffic["up"] == up * MODEL_BYTES).all()
    assert (traffic["down"] == down * MODEL_BYTES).all()
    wanted = {"up": up * MODEL_BYTES / 1e6, "down": down * MODEL_BYTES / 1e6}
    assert run.traffic_mb_per_client_round() == pytest.approx(wanted)
    steps = passes * np.array([2, 1, 1, 3, 1])
    assert run.clients["local_steps"].dtype == np.int32
    assert (run.clients["local_steps"] == steps).all()
    # Two layers' products and the update; of four samples, whose own gradient nobody asks for.
    assert run.flops_per_step > 4 * (3 * 2 * (20 + 15) - 2 * 20) + 2 * 43
    np.testing.assert_array_equal(
        run.flops(), np.broadcast_to(steps * run.flops_per_step, (2, 1, 2, 5))
    )
    gflop = steps.mean() * run.flops_per_step / 1e9
    assert run.computation() == pytest.approx(
        {
            "flops_per_step": run.flops_per_step,
            "local_steps_per_client_round": passes * 8 / 5,
            "gflop_per_client_round": gflop,
            "gflop_per_client": 2 * gflop,
        }
    )


@pytest.mark.slow
def test_traffic_of_those_who_take_part():
    run = simulate(federation=toy_federation(participation=0.6))
    for way, sent in run.traffic().items():
        np.testing.assert_array_equal(sent, run.clients["participated"] * MODEL_BYTES, way)
    present = run.clients["participated"]
    assert (present.sum(-1) == 3).all()
    np.testing.assert_array_equal(run.clients["local_steps"], present * [2, 1, 1, 3, 1])
    done, gflop = run.computation(), run.flops().sum() / 1e9
    assert done["gflop_per_client_round"] == pytest.approx(gflop / present.sum())
    assert done["gflop_per_client"] == pytest.approx(gflop / (2 * 5))


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
    (tmp_path / "result.json").write_text(json.dumps(facts))
    loaded = Result.load(tmp_path)
    assert loaded.flops() is None
    assert set(loaded.computation().values()) == {None}
    assert loaded.summary()["accuracy"] == result.summary()["accuracy"]


def test_a_result_is_never_overwritten(result, tmp_path):
    result.save(tmp_path)
    before = (tmp_path / "result.npz").read_bytes()
    with pytest.raises(InputError, match=r"has a result\.json already"):
        replace(result, algorithm="other").save(tmp_path)
    assert (tmp_path / "result.npz").read_bytes() == before
    assert Result.load(tmp_path).algorithm == "fedavg"


@pytest.mark.parametrize("name", ["result.json", "result.npz"])
def test_a_file_of_that_name_is_never_overwritten(result, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"has a {name} already"):
        result.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_functions_among_hyperparameters_are_saved_by_name(result, tmp_path):
    replace(result, hyperparameters={"omega": simulate}).save(tmp_path)
    assert Result.load(tmp_path).hyperparameters == {"omega": f"{__name__}.simulate"}


def test_loading_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"No saved result can be read from .*: No file .*json\.$"):
        Result.load(tmp_path)


@pytest.mark.parametrize("name", ["result.json", "result.npz"])
def test_loading_a_damaged_result(result, tmp_path, name):
    result.save(tmp_path)
    (tmp_path / name).write_bytes(b"PK, but no more")
    with pytest.raises(InputError):
        Result.load(tmp_path)


def test_half_precision_arrays_survive(result, tmp_path):
    loss = np.asarray(jnp.ones((2, 1, 3, 5), jnp.bfloat16))
    replace(result, clients=result.clients | {"train_loss": loss}).save(tmp_path)
    np.testing.assert_array_equal(Result.load(tmp_path).clients["train_loss"], 1.0)


@pytest.fixture(scope="module")
def two_rates():
    with jax.enable_x64(True):
        settings = {"learning_rate": (0.0, 0.3)}
        return pfl.simulate(
            pfl.make_algorithm("fedavg"), toy_federation(), 2, settings=settings, chunk=8
        )


def test_final_models_of_some_clients(two_rates):
    final = two_rates.final
    with pytest.raises(InputError, match=r"rows must be clients in 0\.\.4, got \[5\]"):
        final.models([5])
    models = final.models([1, 3])
    assert isinstance(models["global"], pfl.Broadcast)
    assert models["global"].model["params"]["head"]["bias"].shape == (2, 3)


def new_clients(ids):
    federation = toy_federation((4, 6, 2), seed=7)
    return replace(federation, data=replace(federation.data, ids=jnp.array(ids)))


def test_new_clients_of_another_federation(two_rates):
    final = two_rates.final
    made = final.personalize(new_clients((100, 101, 102)))["params"]
    server = final.models()["global"].model["params"]
    for new, old in zip(jax.tree.leaves(made), jax.tree.leaves(server), strict=True):
        assert new.shape == (2, 3, *old.shape[1:])  # runs, new_clients
        np.testing.assert_array_equal(new[0], np.broadcast_to(old[0], new[0].shape))  # rate 0
        assert np.isfinite(new).all()
    kernels = np.asarray(made["head"]["kernel"][1])
    assert len(np.unique(kernels.round(6), axis=0)) == 3
    again = final.personalize(new_clients((100, 999, 102)))["params"]["head"]["kernel"][1]
    np.testing.assert_array_equal(again[0], kernels[0])
    np.testing.assert_array_equal(again[2], kernels[2])  # the others' ids do not matter
    assert (np.asarray(again[1]) != kernels[1]).any()  # six samples: batches in another order


@pytest.mark.parametrize("given", [[0.5], "hidden=2", 1, {0: 1}])
def test_options_of_a_model_that_are_no_dict(given):
    x, y = np.zeros((4, 2), np.float32), np.arange(4) % 2
    data = pfl.dataset_from_arrays("four", x, y)
    partition = pfl.Partition.from_lists([[0, 1]], [[2, 3]])
    with pytest.raises(pfl.InputError, match="model_options must be a dict such as"):
        pfl.federate(data, partition, "mlp", model_options=given)


@pytest.mark.parametrize("given", [{0}, 1.5, "0", np.array(1), {0: 1}])
@pytest.mark.parametrize("name", ["seeds", "score_clients", "matrix_rounds", "settings"])
def test_lists_that_are_none(name, given):
    federation = toy_federation(dtype="float32")
    options = [{name: given}] if given != {0: 1} or name != "settings" else []
    options += [{name: {"learning_rate": given}}] if name == "settings" else []
    for one in options:
        with pytest.raises(pfl.InputError, match="must be"):
            pfl.simulate(pfl.make_algorithm("local"), federation, 1, **one)


def test_an_adaptation_of_another_type():
    with pytest.raises(pfl.InputError, match="adapt must be an Adaptation, or None, got 1"):
        pfl.simulate(pfl.make_algorithm("local"), toy_federation(dtype="float32"), 1, adapt=1)
