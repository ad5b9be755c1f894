"""Finding runs, and what selects and names them."""

import json
import shutil
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from experiments.figures import accuracy, selection, settings
from experiments.figures.loading import find
from fedjax_pfl.utils.errors import InputError
from tests.experiments.small_runs import assert_input_error

from .conftest import CLIENTS, ROUNDS, SEEDS

ALGORITHMS = ["local", "feddwa", "cwfedavg", "weight_erosion"]


@pytest.fixture
def variant(found, tmp_path):
    """`variant(name, **changes)`: a copy of FedDWA's run whose config has other values."""

    def make(name, seed=None, hyperparameters=None, **flags):
        folder = tmp_path / name / "feddwa"
        shutil.copytree(found["main", "feddwa"].folder, folder)
        config = json.loads((folder / "config.json").read_text())
        config["hyperparameters"] |= hyperparameters or {}
        for group in config["flags"].values():
            group |= {k: v for k, v in flags.items() if k in group}
        (folder / "config.json").write_text(json.dumps(config))
        return find([str(folder)])[0]

    return make


def test_the_devices_of_a_run_are_no_settings(variant):
    one, two = variant("one"), variant("two", distributed="10.0.0.1:1,2,0", devices="2")
    assert selection.differing_settings([one, two]) == []


def test_a_comparison_gives_its_algorithms_in_their_order(finished):
    runs = find([str(finished / "main")])
    assert [run.algorithm for run in runs] == ALGORITHMS
    assert all(run.seeds == list(SEEDS) and run.num_clients == CLIENTS for run in runs)


def test_folders_above_patterns_and_repetitions(finished):
    everything = {run.folder for run in find([str(finished)])}
    assert len(everything) == 8
    assert {run.folder for run in find([f"{finished}/*"])} == everything
    one = finished / "main" / "feddwa"
    runs = find([str(one), str(finished / "main"), str(one)])
    assert len(runs) == len(ALGORITHMS)
    for name in ("feddwa", "Fed-DWA"):
        assert [run.algorithm for run in find([str(finished)], [name])] == ["feddwa"]


def test_numbers_in_names_are_sorted_as_numbers(finished, tmp_path):
    for name in ("k10", "k2", "k2.5"):
        shutil.copytree(finished / "iid" / "fedavg", tmp_path / name / "fedavg")
    for runs in (find([str(tmp_path)]), find([f"{tmp_path}/k*"])):
        assert [run.folder.parent.name for run in runs] == ["k2", "k2.5", "k10"]


def test_find_of_unfinished_runs(finished, tmp_path):
    shutil.copytree(finished / "iid" / "fedavg", tmp_path / "x" / "fedavg")
    (tmp_path / "x" / "fedavg" / "summary.json").unlink()
    assert_input_error(r"x is not a finished run: .*summary\.json", find, [str(tmp_path / "x")])
    (tmp_path / "x" / "fedavg" / "summary.json").write_text("{")
    assert_input_error(r"can't be read", find, [str(tmp_path / "x")])
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.csv").touch()
    assert_input_error(r"s is a sweep, not a finished run", find, [str(tmp_path / "s")])
    assert_input_error(r"No folder .*nowhere", find, [str(tmp_path / "nowhere")])
    assert_input_error(r"No folder matches", find, [str(tmp_path / "nowhere*")])
    assert_input_error(r"Did you mean 'fedavg'", find, [str(finished / "iid")], ["fedagv"])


def test_settings_of_a_run(found):
    settings = found["main", "feddwa"].settings
    assert settings["feddwa.top_k"] == settings["top_k"] == 3
    assert settings["algorithm"] == "feddwa" and settings["groups"] == 2
    assert settings["dominant_share"] == 0.8  # the rule's default, under its flag's name
    assert settings["num_clients"] == CLIENTS and settings["partition"] == "grouped"
    assert "alpha" not in settings  # an option of another rule
    assert "output_dir" not in settings
    # A flag of that name is not a setting here, so the algorithm's hyperparameter has it.
    assert found["main", "weight_erosion"].settings["alice"] == 1


def test_arrays_of_a_run(found, layered):
    run, alpha = layered
    np.testing.assert_array_equal(run.matrix("alpha"), alpha)
    assert [*run.result.matrices] == ["alpha"]
    assert_input_error("no matrix 'rounds'", run.matrix, "rounds")
    assert run.blocks(2) == ["fc_0", "head"] and run.blocks(1) == ["model"]
    one = found["iid", "fedavg"].matrix("mixing")
    assert one.shape == (len(SEEDS), ROUNDS, 1, CLIENTS, CLIENTS)
    np.testing.assert_allclose(one, 1 / CLIENTS, rtol=1e-6)
    assert set(run.scored()) == {"personalized"}
    assert set(found["main", "feddwa"].scored()) == {"personalized", "guidance"}
    assert "participated" in run.records
    assert not any(name.startswith("personalized") for name in run.records)


def test_runs_without_what_a_figure_needs(found):
    runs = list(found.values())
    assert {r.algorithm for r in selection.with_record(runs, "weight")} == {"weight_erosion"}
    assert {r.algorithm for r in selection.with_scores(runs, ["guidance"])} == {"feddwa"}
    local = [found["main", "local"]]
    with pytest.raises(InputError, match=r"record 'weight' .*: run an algorithm that records it"):
        selection.with_record(local, "weight")
    with pytest.raises(InputError, match=r"'adapted' .*--adapt_steps=10 --adapt_when=last"):
        selection.with_scores(local, ["adapted"])
    assert_input_error(r"feddwa\.score_guidance=true", selection.with_scores, local, ["guidance"])
    with pytest.raises(InputError, match=r"--validation_fraction"):
        selection.with_scores(local, ["personalized"], "validation")
    assert_input_error(r"matrix 'alpha'.*--matrix_rounds", selection.with_matrix, local, "alpha")


def test_what_varies_and_labels(found, variant):
    a, b = variant("a"), variant("b", hyperparameters={"top_k": 1}, batch_size=8)
    assert selection.varying([a, b]) == ["batch_size", "feddwa.top_k"]
    assert selection.labels([a, b]) == ["batch_size=16, top_k=3", "batch_size=8, top_k=1"]
    private = variant("private", share="none")
    assert selection.labels([found["main", "feddwa"], private]) == ["share=default", "share=none"]
    measured = variant("measured", adapt_steps=3, num_seeds=9)
    assert selection.varying([a, measured]) == ["num_seeds"]
    assert selection.labels([a, measured]) == ["a/feddwa", "measured/feddwa"]
    # A file's content changed between two runs with the same flags.
    with mock.patch.object(type(a), "data", property(lambda run: {"dataset_hash": run.folder})):
        first, second = selection.labels([a, measured])
    assert first.startswith("a/feddwa (data set") and second.startswith("measured/feddwa (data set")
    main = [found["main", algorithm] for algorithm in ALGORITHMS]
    assert selection.labels(main) == ALGORITHMS  # other hyperparameters are no difference
    assert selection.labels([a, found["main", "local"]]) == ["feddwa", "local"]
    assert_input_error(r"Did you mean 'top_k'", selection.with_setting, [a, b], "topk")


def test_own_code_is_a_difference_within_an_algorithm_only(found):
    def with_code(algorithm, *code):
        run = found["main", algorithm]
        return replace(run, config=run.config | {"code": list(code)})

    local, feddwa = with_code("local"), with_code("feddwa", "own.py 1a2b")
    assert selection.labels([local, feddwa]) == ["local", "feddwa"]
    assert selection.varying([local, feddwa]) == ["algorithm"]
    other = with_code("feddwa", "own.py 3c4d")
    assert selection.labels([feddwa, other]) == ["code=own.py 1a2b", "code=own.py 3c4d"]
    assert selection.differing_settings([feddwa, other]) == ["code"]


def test_equal_labels_refused(found):
    runs = [found["main", "local"], found["main", "feddwa"]]
    for given in ({"local": "X", "feddwa": "X"}, {"local": "feddwa"}):
        both = r"--labels makes both 'local' and 'feddwa' '\w+': give them different labels"
        with selection.with_labels(given):
            for draw in (selection.labels, accuracy.by_round):
                assert_input_error(both, draw, runs)
            assert_input_error(both, settings.against_setting, runs, x="rounds")
    with selection.with_labels({"local": "feddwa", "feddwa": "local"}):
        assert selection.labels(runs) == ["feddwa", "local"]
