"""The same folder with further algorithms or seeds: what is there stays, and the rest is run."""

import json
import signal
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as pfl
from experiments.cli import identity
from fedjax_pfl.results.joining import join_seeds
from fedjax_pfl.results.model_files import load_models
from tests.experiments.small_runs import SMALL, assert_input_error, assert_refused, run_in
from tests.experiments.stopped_runs import killing, watching

WORDS = (*SMALL, "--rounds=3", "--checkpoint_seconds=0")


def call(folder, *words):
    return run_in(folder, *WORDS, *words)


def contents(folder):
    return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()}


def check_equal_but_for_rounding(ours, theirs):
    """Seeds that are simulated together are vectorized together: sums may round differently."""
    assert (ours.seeds, ours.remarks) == (theirs.seeds, theirs.remarks)
    for group in ("scores", "clients", "matrices"):
        for name, values in getattr(theirs, group).items():
            one = getattr(ours, group)[name]
            np.testing.assert_allclose(one, values, 1e-4, 1e-5, err_msg=name)
    np.testing.assert_array_equal(ours.copies_up, theirs.copies_up)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Local training and FedAvg with seeds 0 to 2, new clients among the data."""
    folder = tmp_path_factory.mktemp("three") / "out"
    words = ("--new_clients=1", "--new_client_steps=0,2", "--headline=pfllib")
    assert call(folder, "--algorithms=local,fedavg", "--num_seeds=3", *words) == 0
    return folder


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """The same in three commands: an algorithm, then another one, then two more seeds.

    The last one is interrupted in between.
    """
    folder = tmp_path_factory.mktemp("grown") / "out"
    words = ("--new_clients=1", "--new_client_steps=0,2")
    assert call(folder, "--algorithms=fedavg", "--num_seeds=1", *words) == 0
    before = contents(folder / "fedavg")
    assert call(folder, "--algorithms=local,fedavg", "--num_seeds=1", *words) == 0
    assert contents(folder / "fedavg") == before
    with killing("fedavg, seeds 1-2", 1, signal.SIGINT):
        assert call(folder, "--algorithms=local,fedavg", "--num_seeds=3", *words) == 130
    assert contents(folder / "fedavg") == before and (folder / "local").exists()
    with watching(lambda name, progress: None) as names:
        assert call(folder, "--algorithms=local,fedavg", "--num_seeds=3", *words) == 0
    assert names == ["fedavg, seeds 1-2"]  # what is finished is not run again
    return folder


def test_further_algorithms_and_seeds_give_the_numbers_of_one_run(finished, grown):
    for name in ("local", "fedavg"):
        ours, theirs = (pfl.Result.load(folder / name) for folder in (grown, finished))
        check_equal_but_for_rounding(ours, theirs)
        models = [load_models(folder / name / "models.npz") for folder in (grown, finished)]
        assert jax.tree.structure(models[0]) == jax.tree.structure(models[1])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), *models)
        tables = [pd.read_csv(f / name / "new_clients.csv") for f in (grown, finished)]
        assert tables[0].iloc[:, :4].equals(tables[1].iloc[:, :4])
        config = json.loads((grown / name / "config.json").read_text())
        assert config["seeds"] == [0, 1, 2]
    lines = (finished / "comparison.md").read_text().splitlines()
    assert any(line.startswith("| Algorithm | Headline % |") for line in lines)
    tables = [(f / "comparison.csv").read_text().splitlines() for f in (grown, finished)]
    assert [line.partition(",")[0] for line in tables[0]] == ["algorithm", "local", "fedavg"]
    assert len(tables[1]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--algorithms=fedavg"], "experiments.compare"),
        (["--algorithms=fedavg", "--num_seeds=4"], "--algorithms was"),
        (["--num_seeds=4", "--learning_rate=0.3"], "--learning_rate was"),
        (["--rounds=4", "--patience=2", "--validation_fraction=0.2"], "another run"),
    ],
)
def test_growth_refused(finished, words, said, capsys):
    words = ["--algorithms=local,fedavg", "--num_seeds=3", "--new_clients=1",
             "--new_client_steps=0,2", *words]  # fmt: skip
    assert_refused(call(finished, *words), said, capsys)


def flags_of(**changed):
    before = {"algorithms": ["fedavg"], "num_seeds": 3, "seed": 0, "rounds": 5, "patience": None,
              "learning_rate": 0.1, "fedavg.batch_norm": "shared"}  # fmt: skip
    return before | changed


@pytest.mark.parametrize(
    ("changed", "larger"),
    [
        ({}, False),
        ({"rounds": 6}, True),
        ({"rounds": 6, "matrix_rounds": ["6"]}, True),
        ({"matrix_rounds": ["5"]}, False),
        ({"rounds": 4}, False),
        ({"num_seeds": 4}, True),
        ({"algorithms": ["local", "fedavg"], "local.batch_norm": "own"}, True),
        ({"algorithms": ["local", "fedavg"], "num_seeds": 4}, True),
        ({"algorithms": ["local"]}, False),
        ({"algorithms": ["local", "fedavg"], "fedavg.batch_norm": "own"}, False),
        ({"algorithms": ["local", "fedavg"], "import_file": ["own.py 1a"]}, True),
        ({"import_file": ["own.py 1a"]}, False),
        ({"import_file": ["own.py 1a"], "num_seeds": 4}, False),
        ({"num_seeds": 4, "rounds": 6}, True),
        ({"num_seeds": 4, "rounds": 4}, False),
        ({"patience": 3}, False),
        ({"num_seeds": 4, "patience": 3}, False),
    ],
)
def test_growth_of_a_run(changed, larger):
    assert identity.grows(flags_of(), flags_of(**changed)) == larger


@pytest.mark.parametrize(("patience", "larger"), [(2, False), (4, True), (None, True)])
def test_a_smaller_patience_does_not_shorten_a_run(patience, larger):
    before, now = flags_of(patience=3), flags_of(patience=patience, rounds=6)
    assert identity.grows(before, now) == larger


@pytest.mark.costly
def test_rounds_seeds_and_algorithms_at_once(finished, tmp_path):
    """Each block of seeds goes on from its own last state."""
    words = ("--new_clients=1", "--new_client_steps=0,2", "--keep_state")
    first = ("--algorithms=fedavg", "--num_seeds=2", "--rounds=2")
    assert call(tmp_path, *words, *first) == 0
    assert call(tmp_path, *words, "--algorithms=local,fedavg", "--num_seeds=3") == 0
    for name in ("local", "fedavg"):
        ours, theirs = (pfl.Result.load(folder / name) for folder in (tmp_path, finished))
        check_equal_but_for_rounding(ours, theirs)


def test_results_with_a_seed_in_common_are_not_joined(finished):
    one = pfl.Result.load(finished / "local")
    assert_input_error("seeds in common", join_seeds, [one, one])
    other = replace(one, seeds=(7, 8, 9))
    assert join_seeds([one, other]).seeds == (0, 1, 2, 7, 8, 9)
    fewer = replace(other, matrix_rounds=np.array([1, 2]))
    assert join_seeds([one, fewer]).matrix_rounds.tolist() == [1, 2]  # which both have
    for changed in ({"client_names": tuple("abcd")}, {"settings": {"learning_rate": np.ones(1)}}):
        with pytest.raises(pfl.InputError, match=f"their {next(iter(changed))} differ"):
            join_seeds([one, replace(other, **changed)])
    with pytest.raises(pfl.InputError, match=r"their algorithm.* differ"):
        join_seeds([one, pfl.Result.load(finished / "fedavg")])
