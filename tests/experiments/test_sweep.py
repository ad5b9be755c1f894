"""Sweeps from the command: what is written, said and refused, and going on."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import run, sweep
from experiments.cli import algorithms, flags
from experiments.cli.parsing import CONFLICT
from tests.experiments.small_runs import SMALL, assert_refused, error_line, read_rows

from .conftest import drawing

WORDS = (*SMALL, "--rounds=3", "--eval_every=3", "--algorithms=fedavg,feddwa")
GRID = ("--grid=feddwa.top_k=1,3", "--grid=learning_rate=0.03,0.3")


def call(*words):
    return sweep.main(["sweep", *WORDS, *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "out"
    with drawing():
        assert call(*GRID, f"--output_dir={folder}") == 0
    assert (folder / "fedavg.png").read_bytes().startswith(b"\x89PNG")
    return folder


def test_a_setting_of_the_sweep_is_the_single_run(finished, tmp_path):
    """In validation and test accuracy, seed by seed; as many seeds as runs in one program."""
    rows = read_rows(finished / "sweep.csv")
    assert len(rows) == (2 + 4) * 2 and {row["seed"] for row in rows} == {"0", "1"}
    chosen = ("feddwa", "1", "0.3")
    mine = [r for r in rows
            if (r["algorithm"], r["feddwa.top_k"], r["learning_rate"]) == chosen]  # fmt: skip
    words = [*WORDS, "--algorithms=feddwa", "--set=feddwa.top_k=1", "--learning_rate=0.3"]
    words += ["--validation_fraction=0.2", "--num_seeds=4", f"--output_dir={tmp_path / 'one'}"]
    assert run.main(["run", *words]) == 0
    alone = pfl.Result.load(tmp_path / "one" / "feddwa")
    for name in ("validation", "test"):
        measured = [float(row[f"{name}_percent"]) for row in mine]
        wanted = 100 * alone.curve("personalized", name)[:2, 0, -1]
        np.testing.assert_allclose(measured, wanted, rtol=1e-5)


def test_sweep_of_changing_data(tmp_path, monkeypatch, capsys):
    """Every program loads its data again: another file of that name is not the sweep's."""
    file, y = tmp_path / "d.npz", np.arange(60) % 3
    np.savez(file, x_train=np.eye(3)[y], y_train=y)
    began = sweep.sweep

    def later(*args):
        np.savez(file, x_train=np.eye(3)[(y + 1) % 3], y_train=y)
        return began(*args)

    monkeypatch.setattr(sweep, "sweep", later)
    words = [f"--dataset=npz:{file}", "--grid=batch_size=5,10", f"--output_dir={tmp_path / 'out'}"]
    assert call("--algorithms=local", *words) == 2
    assert "have changed since it began: content of the data set was" in error_line(capsys)
    assert not list((tmp_path / "out" / "results").iterdir())


def test_ranking_and_chosen_flags(finished):
    rows = read_rows(finished / "sweep.csv")
    means = {}
    for row in rows:
        if row["algorithm"] == "feddwa":
            key = (row["feddwa.top_k"], row["learning_rate"])
            means.setdefault(key, []).append(float(row["validation_percent"]))
    best = max(means, key=lambda key: np.mean(means[key]))
    lines = (finished / "sweep.md").read_text().splitlines()
    first = next(line for line in lines if line.startswith("| **feddwa**"))
    assert f"**feddwa.top_k={best[0]}, learning_rate={best[1]}**" in first
    listed = [float(line.split("|")[3].strip(" *").split(" ")[0])
              for line in lines if "feddwa" in line and line.startswith("|")]  # fmt: skip
    assert listed == sorted(listed, reverse=True)
    args = flags.parse(["run", f"--settings_from={finished}"])
    assert args.algorithms == ["fedavg", "feddwa"]
    own = args.training_of["feddwa"]
    assert own.get("learning_rate", args.learning_rate) == float(best[1])
    made = algorithms.parse_algorithms(args.algorithms, args["set"].value)
    assert made["feddwa"].top_k == int(best[0])


def test_a_run_with_the_chosen_settings(finished, tmp_path):
    """One flag: the sweep's own flags, then its choices; what is given later wins."""
    given = ["run", f"--settings_from={finished}", "--num_seeds=5"]
    for words in (given, ["run", "--settings_from", str(finished), "--num_seeds=5"]):
        args = flags.parse(words)
        assert args.algorithms == ["fedavg", "feddwa"]
        assert (args.model, args.num_clients, args.rounds) == ("softmax", 4, 3)
        assert (args.validation_fraction, args.num_seeds) == (0.2, 5)
        assert args.output_dir is None
    args.check()
    with pytest.raises(pfl.InputError, match=r"takes the folder of a finished sweep, and"):
        flags.parse(["run", f"--settings_from={tmp_path}"])
    (tmp_path / "settings.flags").write_text(f"# alpha {CONFLICT}:\n#   local: 1\n")
    with pytest.raises(pfl.InputError, match="chose different values of alpha, which can't differ"):
        flags.parse(["run", f"--settings_from={tmp_path}"])


def test_the_same_command_shows_what_is_finished(finished, monkeypatch, capsys):
    """The ranking and what is said below it, as in the file."""
    monkeypatch.setattr(pfl, "simulate", None)  # nothing is run again
    assert call(*GRID, f"--output_dir={finished}") == 0
    out = capsys.readouterr().out
    assert "| **feddwa** |" in out
    text = "With 2 seeds a 95 % interval has 1 degree of freedom and extends 12.7 standard errors"
    assert text in out and text in (finished / "sweep.md").read_text()
    # What the grid varies has no one value.
    line = "Training: 1 local epoch, minibatches of 10, participation 1 (all 4 clients in a round)."
    assert line in out and line in (finished / "sweep.md").read_text()
    assert_refused(call(GRID[0], f"--output_dir={finished}"), "--grid was", capsys)


@pytest.mark.costly
def test_options_that_a_sweep_leaves_out(tmp_path, capsys):
    """New clients take no part, here as in the run that the choice is for."""
    said = (
        "New clients take no part in the sweep and are not scored.\n",
        "A sweep does not use --adapt_steps, --new_client_steps.\n",
    )
    words = ["--algorithms=local", "--grid=learning_rate=0.1,0.2", "--rounds=1", "--new_clients=1"]
    words += ["--new_client_steps=1", "--adapt_steps=1", f"--output_dir={tmp_path / 'o'}"]
    assert call(*words) == 0
    out, file = capsys.readouterr().out, (tmp_path / "o" / "sweep.md").read_text()
    assert all(one.strip() in file for one in said) and out.count("A sweep does not use") == 1
    assert "all 3 clients in a round" in file
    result = pfl.Result.load(next((tmp_path / "o" / "results").iterdir()))
    assert result.client_ids.tolist() == [0, 1, 2]


@pytest.mark.costly
def test_both_moments_of_a_sweep(tmp_path, capsys):
    words = ["--algorithms=local", "--grid=learning_rate=0.1,0.2", "--rounds=1", "--moments=both"]
    assert call(*words, f"--output_dir={tmp_path}/o") == 0
    out, rows = capsys.readouterr().out, read_rows(tmp_path / "o" / "sweep.csv")
    assert "| Test % | Trained % |" in out and "Trained: the mean of copies that take one" in out
    result = pfl.Result.load(next((tmp_path / "o" / "results").iterdir()))
    for name, column in (("personalized", "test_percent"), ("trained", "trained_test_percent")):
        shown = [float(row[column]) for row in rows]
        wanted = 100 * result.curve(name)[:, :, -1].T.ravel()
        np.testing.assert_allclose(shown, wanted, rtol=1e-5)


def test_validation_samples_of_a_partitions_file(tmp_path):
    """They take the place of those that a sweep sets aside."""
    dataset = pfl.load_dataset("digits")
    partition = pfl.make_partition("iid", dataset, 4, 0).split_validation(0.3, 0)
    partition.save(tmp_path / "own.npz")
    words = [f"--partition_file={tmp_path / 'own.npz'}", "--grid=learning_rate=0.1,0.2"]
    one = ["--dataset=digits", "--model=softmax", "--algorithms=fedavg", "--rounds=1", *words]
    plan = sweep.planned(["sweep", *one, f"--output_dir={tmp_path / 'out'}"], sweep.define)
    assert not plan.config.validation_fraction
    assert sweep.planned(["sweep", *one, "--validation_fraction=0"], sweep.define)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give values to try"),
        (["--grid=learning_rate"], "--grid must read NAME=VALUE"),
        (["--grid=learning_rate=0.1,0.10"], "must list different values"),
        (["--grid=learning_rate=0.1", "--rank_by", "test"], "Unknown --rank_by 'test'"),
        (["--grid=learning_rate=0.1", "--grid=learning_rate=1"], "gives learning_rate twice"),
        (["--grid=lr=0.1,1"], "Unknown name in --grid 'lr'. Did you mean 'learning_rate'?"),
        (["--grid=Fed-DWA.top_k=1", "--grid=feddwa.top_k=3"], "gives feddwa.top_k twice"),
        (["--grid=FedDWA.topk=1"], "Unknown hyperparameter of 'feddwa' in --grid 'topk'"),
        (["--grid=fedavgg.x=1"], "Unknown algorithm in --grid 'fedavgg'"),
        (["--grid=feddwa.guidance=epochs,lost"], "Unknown value of feddwa.guidance 'lost'"),
        (["--grid=batch_size=10,0"], "batch_size"),
        (["--grid=feddwa.top_k=1,-1"], "top_k must be"),
        (["--grid=learning_rate=0.1,x"], "must be a number, got 'x'"),
        (["--grid=top_k=1,2"], "write feddwa.top_k."),
        (["--grid=local_epochs=1,2", "--local_steps=3"], "local_epochs has no effect with local_s"),
        (["--grid=validation_fraction=0,0.5"], "--validation_fraction must be above 0"),
    ],
)
def test_sweep_refused(words, said, tmp_path, capsys):
    assert_refused(call(*words, f"--output_dir={tmp_path / 'o'}"), said, capsys)
    assert not (tmp_path / "o").exists()
