"""The script as a user calls it, in-process: its files, its flags, going on."""

from pathlib import Path

import jax
import numpy as np
import pytest

import experiments
import fedjax_pfl as pfl
from experiments.run import main
from fedjax_pfl.data.sources.source_registry import DATASETS
from fedjax_pfl.results.model_files import load_models, model_axes
from tests.experiments.small_runs import SMALL, arrays, assert_refused, read_json, read_rows

from .conftest import drawing

SEEDS, ROUNDS, CLIENTS = 2, 2, 6
QUICK = (*SMALL, "--model=mlp", f"--num_clients={CLIENTS}", "--alpha=0.5")
TWO = ("--algorithms=fedavg,feddwa", "--set=feddwa.top_k=3", "--validation_fraction=0.1")


def call(*words):
    return main(["run", *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a run of two algorithms."""
    folder = tmp_path_factory.mktemp("run") / "deep" / "out"
    with drawing():
        assert call(*QUICK, *TWO, f"--output_dir={folder}", "--seed=7") == 0
    return folder


def test_files(finished):
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    expected = {"run.json", ".lock", "partition.npz", "partition.png", "accuracy.png"}
    expected |= {"gains.png", "comparison.csv", "comparison.md"}
    files = ("config.json", "metrics.csv", "summary.json", "result.json", "result.npz")
    for algorithm in ("fedavg", "feddwa"):
        expected |= {f"{algorithm}/{file}" for file in (*files, "mixing.png", "models.npz")}
    assert names == expected  # nothing half-written is left either
    for path in finished.rglob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_summary(finished):
    summary = read_json(finished / "feddwa" / "summary.json")
    assert summary["algorithm"] == "feddwa"
    assert summary["dataset"] == "digits"
    assert summary["partition"] == "dirichlet"
    assert (summary["num_clients"], summary["rounds"]) == (CLIENTS, ROUNDS)
    assert summary["seeds"] == [7, 8]
    keys = {"final_mean", "final_std_over_seeds", "final_pooled", "best_mean", "worst_decile"}
    assert keys <= set(summary["accuracy"])
    assert all(0 <= summary["accuracy"][key] <= 1 for key in keys)
    # A model of 4,810 float32 parameters, trained and guidance model up, one mix down.
    assert summary["traffic_mb_per_client_round"] == pytest.approx({"up": 0.03848, "down": 0.01924})
    assert summary["model_parameters"] == 4810
    for key in ("seconds_per_round", "compile_seconds"):
        assert summary[key] > 0
    assert 0 < summary["padding_efficiency"] <= 1


def test_config(finished):
    config = read_json(finished / "feddwa" / "config.json")
    assert config["hyperparameters"]["top_k"] == 3
    assert config["seeds"] == [7, 8]
    assert config["dataset"]["input_scaling"] == "digits"
    assert config["partition"]["rule"] == "dirichlet"
    assert config["partition"]["options"]["alpha"] == 0.5
    assert config["partition"]["hash"] == pfl.Partition.load(finished / "partition.npz").hash()
    assert config["execution"]["clients"] in ("map", "vmap")
    assert {"python", "jax", "flax", "optax", "numpy", "fedjax_pfl"} <= set(config["versions"])
    assert config["flags"]["training"]["learning_rate"] == 0.1


def test_metrics(finished):
    rows = read_rows(finished / "fedavg" / "metrics.csv")
    assert list(rows[0]) == ["seed", "round", "metric", "value"]
    values = {(int(r["seed"]), int(r["round"]), r["metric"]): float(r["value"]) for r in rows}
    assert len(values) == len(rows) and np.isfinite(list(values.values())).all()
    metrics = {metric for _, _, metric in values}
    assert not any(metric.endswith("participants") for metric in metrics - {"participants"})
    kinds = ("accuracy", "loss", "accuracy_pooled", "accuracy_worst_decile")
    assert {f"personalized/test/{kind}" for kind in kinds} <= metrics
    assert {"personalized/validation/accuracy", "train_loss", "traffic/up_bytes"} <= metrics
    clients = arrays(finished / "fedavg")
    for s, seed in enumerate((7, 8)):
        for t in range(ROUNDS):
            mean = clients["personalized/test/accuracy"][s, t].mean(dtype=float)
            assert values[seed, t + 1, "personalized/test/accuracy"] == pytest.approx(mean)
            assert values[seed, t + 1, "traffic/up_bytes"] == CLIENTS * 4810 * 4
            steps = clients["local_steps"][s, t].sum()
            assert values[seed, t + 1, "local_steps"] == steps > 0
            done = clients["computation/flops"][s, t].sum()
            assert values[seed, t + 1, "computation/flops"] == pytest.approx(done)


def test_clients(finished):
    clients, result = arrays(finished / "feddwa"), pfl.Result.load(finished / "feddwa")
    names = ("personalized/test/accuracy", "personalized/test/loss", "participated")
    names += ("local_steps", "computation/flops", "traffic/up_bytes", "traffic/down_bytes")
    for name in (*names, "diverged", "train_loss"):
        assert clients[name].shape == (SEEDS, ROUNDS, CLIENTS)
        assert np.isfinite(clients[name]).all()
    assert result.eval_rounds.tolist() == [1, 2] and result.seeds == (7, 8)
    partition = pfl.Partition.load(finished / "partition.npz")
    np.testing.assert_array_equal(result.train_sizes, partition.sizes("train"))
    np.testing.assert_array_equal(result.test_sizes, partition.sizes("test"))


def test_mixing(finished):
    result = pfl.Result.load(finished / "feddwa")
    mixing = result.matrices["mixing"][:, 0]
    assert result.matrix_rounds.tolist() == [1, 2]
    assert mixing.shape == (SEEDS, 2, CLIENTS, CLIENTS)
    np.testing.assert_allclose(mixing.sum(axis=-1), 1, rtol=1e-5)
    assert ((mixing > 0).sum(axis=-1) <= 3).all()


def test_models_reproduce_the_accuracies(finished):
    assert model_axes(finished / "fedavg" / "models.npz")["global"] == ("seed",)
    models = load_models(finished / "feddwa" / "models.npz")["personalized"]
    dataset = pfl.load_dataset("digits")
    partition = pfl.Partition.load(finished / "partition.npz")
    task = pfl.federate(dataset, partition, "mlp").task
    clients = arrays(finished / "feddwa")
    for s in range(SEEDS):
        for n in range(CLIENTS):
            params = jax.tree.map(lambda leaf, at=(s, n): leaf[at], models["params"])
            rows = partition.client("test", n)
            logits = task.predict({"params": params}, dataset.train_x[rows] / np.float32(16))
            accuracy = np.mean(np.argmax(logits, axis=1) == dataset.train_y[rows])
            assert accuracy == pytest.approx(clients["personalized/test/accuracy"][s, -1, n])


def test_comparison(finished):
    rows = read_rows(finished / "comparison.csv")
    assert [row["algorithm"] for row in rows] == ["fedavg", "feddwa"]
    column = "personalized_test_accuracy_last_round_mean_over_clients"
    summary = read_json(finished / "feddwa" / "summary.json")
    assert float(rows[1][column]) == pytest.approx(summary["accuracy"]["final_mean"])
    spread = summary["accuracy"]["final_std_over_seeds"]
    width = float(rows[1]["personalized_test_accuracy_last_round_ci95_half_width_over_seeds"])
    assert width == pytest.approx(12.7062 * spread / 2**0.5, rel=1e-4)
    done = summary["computation"]
    assert float(rows[1]["gflop_per_client_round"]) == done["gflop_per_client_round"]
    assert float(rows[1]["gflop_per_client"]) == done["gflop_per_client"]
    text = (finished / "comparison.md").read_text()
    assert "| GFLOP | GFLOP run |" in text
    assert "after the round's aggregation and before its next local training" in text
    assert "| feddwa |" in text


@pytest.mark.costly
def test_part_of_the_clients(tmp_path):
    """Scores are also means over the clients of this round, and of the next."""
    words = [*QUICK, "--num_seeds=1", "--algorithms=fedavg", "--participation=0.5", "--rounds=3"]
    words += ["--eval_every=2", "--adapt_steps=2", "--nosave_models"]
    assert call(*words, f"--output_dir={tmp_path / 'o'}") == 0
    folder = tmp_path / "o" / "fedavg"
    assert " | Adapted % | " in (tmp_path / "o" / "comparison.md").read_text(encoding="utf-8")
    assert not (folder / "models.npz").exists()
    values = {
        (int(r["round"]), r["metric"]): float(r["value"]) for r in read_rows(folder / "metrics.csv")
    }
    clients = arrays(folder)
    assert clients["adapted/test/accuracy"].shape == (1, 2, CLIENTS)
    for t, number in enumerate((2, 3)):
        scores = clients["personalized/test/accuracy"][0, t].astype(float)
        for shift, name in ((0, "participants"), (1, "next_participants")):
            metric = f"personalized/test/accuracy_{name}"
            if number + shift <= 3:
                there = clients["participated"][0, number + shift - 1]
                assert values[number, metric] == pytest.approx(scores[there].mean())
            else:
                assert (number, metric) not in values


def test_list_and_help(capsys):
    assert call("--list") == 0
    out = capsys.readouterr().out
    for name in (*pfl.core.ALGORITHMS, *DATASETS, "top_k=5", "dirichlet", "grouped", "cnn", "half"):
        assert name in out
    assert call("--help") == 0
    out = capsys.readouterr().out
    assert "\ndata:\n" in out and "--learning_rate:" in out and "--verbosity" not in out
    assert "--distributed:" in out
    assert "(an integer of at least 1)" in out and "2147483647" not in out
    assert "(default: '')" not in out and "(default: '[]')" not in out


def test_flagfile_and_presets(tmp_path, capsys):
    (tmp_path / "x.flags").write_text("# ours\n--algorithms=fedavg\n--rounds=0\n")
    assert call(f"--flagfile={tmp_path / 'x.flags'}") == 2
    assert "--rounds must be a whole number of at least 1" in capsys.readouterr().err
    presets = sorted((Path(experiments.__file__).parent / "presets").glob("*.flags"))
    assert presets
    for preset in presets:
        # A preset is complete and right up to what comes after it.
        assert_refused(call(f"--flagfile={preset}", "--set=nonsense"), "--set must read", capsys)
