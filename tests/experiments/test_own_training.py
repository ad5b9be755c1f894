"""Local training of one algorithm in a run: `--set=ALGORITHM.learning_rate=...` and the like."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import sweep
from experiments.cli import algorithms, build, flags, identity
from experiments.figures.loading import find
from experiments.figures.run_table import compare_runs
from tests.experiments.small_runs import TINY, read_json, read_rows, run_in

OWN = ("--set=local.learning_rate=0.5", "--set=local.batch_size=4")


def call(folder, *words):
    assert run_in(folder, *TINY, *words) == 0
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two algorithms, one with its own local training; without; and by flags."""
    root, both = tmp_path_factory.mktemp("own"), "--algorithms=fedavg,local"
    new = ("--new_clients=1", "--new_client_steps=2")
    given = ("--algorithms=local", "--learning_rate=0.5", "--batch_size=4")
    return {
        "own": call(root / "own", both, *OWN, *new),
        "plain": call(root / "plain", both, *new),
        "flags": call(root / "flags", *given, *new),
    }


def metrics(folder, name, file="metrics.csv"):
    return (folder / name / file).read_bytes()


def test_only_that_algorithm_trains_otherwise(finished):
    assert metrics(finished["own"], "fedavg") == metrics(finished["plain"], "fedavg")
    assert metrics(finished["own"], "local") == metrics(finished["flags"], "local")
    assert metrics(finished["own"], "local") != metrics(finished["plain"], "local")
    file = "new_clients.csv"
    assert metrics(finished["own"], "local", file) == metrics(finished["flags"], "local", file)
    assert metrics(finished["own"], "fedavg", file) == metrics(finished["plain"], "fedavg", file)


def test_output_names_own_training(finished):
    config, other = (
        read_json(finished["own"] / name / "config.json") for name in ("local", "fedavg")
    )
    assert config["training"] == {"batch_size": 4, "learning_rate": 0.5}
    assert other["training"] == {}
    summary = read_json(finished["own"] / "local" / "summary.json")
    assert summary["training"]["learning_rate"] == 0.5 and summary["training"]["batch_size"] == 4
    text = "trained with its own batch size 4, learning rate 0.5"
    assert summary["remarks"] == [text]
    table = (finished["own"] / "comparison.md").read_text()
    assert f"local: {text}." in table and "local.learning_rate=0.5" in table
    assert pfl.Result.load(finished["own"] / "local").training == summary["training"]


def test_a_setting_that_the_flags_have_already_changes_nothing():
    def entries(*words):
        args = flags.parse(["run", *TINY, "--algorithms=local", *words])
        return build.load_inputs(args).identity

    plain = entries()
    assert entries("--set=local.learning_rate=0.10") == plain
    said = identity.difference(entries("--set=local.learning_rate=0.2"), plain)
    assert said == "local.learning_rate was 0.2 and is absent"


def test_comparisons_and_figures_with_own_training(finished):
    result = find([str(finished["own"])])
    table, _ = compare_runs(result)
    assert [row["label"] for row in table.rows] == [
        "fedavg, batch_size=10, learning_rate=0.1",
        "local, batch_size=4, learning_rate=0.5",
    ]
    said = "local, batch_size=4, learning_rate=0.5: trained with its own"
    assert any(said in note for note in table.notes)


def test_epochs_take_the_place_of_steps():
    common = pfl.LocalTraining(local_steps=5)
    own = algorithms.own_training(["local"], ["local.local_epochs=1"], common)
    assert own == {"local": {"local_epochs": 1, "local_steps": None}}
    assert algorithms.setting_flags("local", own["local"]) == ["--set=local.local_epochs=1"]


@pytest.mark.costly
def test_sweep_over_the_rate_of_one_algorithm(tmp_path, capsys):
    # Two settings of one seed: the programs of `finished`.
    words = [*TINY, "--algorithms=fedavg,local", "--num_seeds=1", "--new_clients=1"]
    words.append("--set=local.batch_size=4")  # which the programs of fedavg know nothing of
    grid = ["--grid=local.learning_rate=0.1,0.5", "--grid=learning_rate=0.1,0.2"]
    folder = tmp_path / "sweep"
    assert sweep.main(["sweep", *words, *grid, f"--output_dir={folder}"]) == 0
    assert "4 settings in 2 programs" in capsys.readouterr().out
    rows = read_rows(folder / "sweep.csv")
    tried = {(r["algorithm"], r["local.learning_rate"], r["learning_rate"]) for r in rows}
    assert tried == {
        ("fedavg", "", "0.1"), ("fedavg", "", "0.2"), ("local", "0.1", ""), ("local", "0.5", ""),
    }  # fmt: skip
    result = pfl.Result.load(folder / "results" / "local")
    np.testing.assert_allclose(result.settings["learning_rate"], [0.1, 0.5])
    assert result.summary(1)["training"]["learning_rate"] == 0.5
    assert result.training["batch_size"] == 4
    assert pfl.Result.load(folder / "results" / "fedavg").training["batch_size"] == 10
    args = flags.parse(["run", f"--settings_from={folder}"])
    own = args.training_of["local"].get("learning_rate", args.learning_rate)
    text = (folder / "settings.flags").read_text()
    assert f"--set=local.learning_rate={own:g}" in text and "Give --import_file again" in text


def test_own_training_over_the_grid():
    made = {name: pfl.make_algorithm(name) for name in ("fedavg", "local")}
    grid = {"batch_size": ["4", "8"]}
    queue = sweep.programs(made, grid, {"local.batch_size"})
    assert [(cell.algorithm, cell.fixed) for cell in queue] == [
        ("fedavg", {"batch_size": "4"}), ("fedavg", {"batch_size": "8"}), ("local", {}),
    ]  # fmt: skip
    with pytest.raises(pfl.InputError, match=r"Both --grid and --set give local\.batch_size"):
        sweep.programs(made, {"local.batch_size": ["4", "8"]}, {"local.batch_size"})


GIVEN = (
    "--optimizer=adam", "--optimizer_option=b1=0.8", "--learning_rate=0.01", "--lr_schedule=cosine",
    "--lr_schedule_option=final=0.1", "--clip_norm=0.5", "--keep_optimizer_state",
)  # fmt: skip
OTHER = ("--set=local.optimizer=sgd", "--set=local.momentum=0.5",
         "--set=local.lr_schedule=constant")  # fmt: skip


def federation_of(name, *words):
    args = flags.parse(["run", *TINY, *words])
    return build.prepare(build.load_inputs(args)).federation_of(name)


@pytest.mark.costly
def test_flags_and_python_make_the_same_federation():
    one = federation_of("fedavg", *GIVEN, "--algorithms=fedavg")
    assert one.training.numbers() == pfl.LocalTraining(
        optimizer="adam", optimizer_options={"b1": 0.8}, learning_rate=0.01, lr_schedule="cosine",
        lr_schedule_options={"final": 0.1}, clip_norm=0.5, keep_optimizer_state=True,
    ).numbers()  # fmt: skip
    assert one.training.clip_norm == np.float32(0.5) and one.training.keep_optimizer_state
    own = federation_of("local", *GIVEN, *OTHER, "--algorithms=fedavg,local").training
    assert own.make_optimizer() == pfl.training.SGD(0.5) and own.make_lr_schedule() is None
