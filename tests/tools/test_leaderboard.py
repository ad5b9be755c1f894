"""The leaderboard: which rows it has, their order, the files, and its settings."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import study
from experiments.cli import flags
from tools import leaderboard, leaderboard_cells
from tools.benchmark.cases import of_fedavg

ROOT = Path(__file__).resolve().parents[2]
WORDS = "--algorithms=ditto --rounds=7"


def cell(last, scored=True, rate=0.3, up: float | None = 0.204):
    """A cell whose seeds have these accuracies."""
    accuracies = {str(seed): 100 * one for seed, one in enumerate(last)}
    command = f"python -m experiments.run {WORDS}"
    return leaderboard_cells.Cell(accuracies, rate, (0.01, 0.1, 0.3), up, scored, command)


def cells(**rows):
    return {(name, one): cell for name, cell in rows.items() for one in leaderboard_cells.SETTINGS}


FOUND = cells(fedavg=cell([0.5, 0.6], rate=0.1), ditto=cell([0.7, 0.9]), hetlora=cell([0.5, 0.6]),
              waffle=cell([0.9, 0.9], scored=False))  # fmt: skip
FOUND["apfl", "drift"] = cell([1.0, 1.0], up=None)


def test_rows_that_are_no_comparison_are_left_out_with_the_reason():
    names, left_out = leaderboard.select(FOUND)
    assert names == ["ditto", "fedavg"]
    assert left_out["hetlora"] == "the same numbers as `fedavg`"
    assert left_out["waffle"] == "it has models for some of the clients"
    assert left_out["apfl"] == "it lacks a setting"
    assert left_out["fedrep"] == "not run"
    assert left_out["fedbn"] == "`mlp` has no batch normalization"
    assert set(left_out) | set(names) == set(pfl.core.ALGORITHMS)
    with pytest.raises(pfl.InputError, match="finished cells of all 6 settings"):
        leaderboard.select({("apfl", "drift"): cell([1.0, 1.0])})


def test_sentences_on_single_rows():
    """Of rows that score other models, and of rows that were measured before a change."""
    text = leaderboard.moments(["ditto", "fedavg", "fedavg_ft", "pfl_da"])
    assert "trained last (`ditto`, `pfl_da`)," in text and "fine-tuning (`fedavg_ft`)," in text
    assert "`pfl_da` (its revision 1" in leaderboard.before_changes(["ditto", "pfl_da"])
    assert leaderboard.before_changes(["ditto"]) == ""


def test_files(tmp_path):
    leaderboard.write(tmp_path, FOUND)
    page = (tmp_path / "README.md").read_text()
    assert "2 algorithms in six settings" in page and "7 rounds" in page
    assert "tries the learning\nrates 0.01, 0.1 and 0.3 with one seed" in page
    assert "Compile" not in page
    assert "the model that it trained last (`ditto`)," in page and "fine-tuning (" not in page
    assert "Measured before a change" not in page
    assert "| [`ditto`](../algorithms/ditto.md) | 1.0 | 80.00 ± " in page
    assert "rows, which choose it everywhere: `fedavg`." in page.replace("\n", " ")
    rows = list(csv.DictReader((tmp_path / leaderboard_cells.CELLS).open()))
    assert len(rows) == len(FOUND)
    first = next(row for row in rows if row["algorithm"] == "ditto")
    assert first["accuracy_percent_seed_1"] == "90.0" and first["learning_rate"] == "0.3"


def test_the_page_is_made_again_from_its_file(tmp_path, capsys):
    leaderboard.write(tmp_path, FOUND)
    files = {path: path.read_text() for path in tmp_path.iterdir()}
    assert leaderboard_cells.kept(tmp_path) == FOUND
    assert leaderboard.main(["leaderboard", str(tmp_path)]) == 0
    assert {path: path.read_text() for path in tmp_path.iterdir()} == files
    (tmp_path / leaderboard_cells.CELLS).write_text("algorithm,setting\nditto,drift\n")
    assert leaderboard.main(["leaderboard", str(tmp_path)]) == 2
    assert "is not a file of cells: KeyError" in capsys.readouterr().err
    (tmp_path / leaderboard_cells.CELLS).unlink()
    assert leaderboard.main(["leaderboard", str(tmp_path)]) == 2
    assert "give folders of finished studies" in capsys.readouterr().err


def test_cells_of_a_study(tmp_path, monkeypatch):
    curve = np.array([[[0.1, one]] for one in (0.7, 0.9)])
    values = {"algorithms": ["ditto"], "rounds": 7, "setting": [], "validation_fraction": 0.2}
    summary = {"scored_clients": [0, 1, 2], "training": {"learning_rate": 0.3},
               "traffic_mb_per_client_round": {"up": 0.204, "down": 2.0}}  # fmt: skip
    one = SimpleNamespace(
        algorithm="ditto", result=SimpleNamespace(curve=lambda: curve), seeds=(0, 1), num_clients=4,
        config={"flags": {"comparison": values | {"learning_rate": 0.3}}}, summary=summary,
    )  # fmt: skip
    monkeypatch.setattr(leaderboard_cells, "read", lambda _: one)
    for study_ in ("a", "b"):
        tuning = tmp_path / study_ / "tuning" / "drift" / "row"
        for place in (tuning, tmp_path / study_ / "drift" / "row" / "ditto"):
            place.mkdir(parents=True)
        (tmp_path / study_ / "drift" / "row" / "ditto" / "summary.json").touch()
        (tuning / "sweep.csv").write_text("algorithm,learning_rate,seed\nx,1,0\nx,0.3,0\nx,1,1\n")
    (found,) = leaderboard_cells.load([tmp_path / "a"]).items()
    words = ["--algorithms=ditto", "--rounds=7", "--validation_fraction=0.2", "--learning_rate=0.3"]
    command = f"python -m experiments.run {' '.join(words)}"
    accuracies = {"0": 70.0, "1": 90.0}
    expected = leaderboard_cells.Cell(accuracies, 0.3, (0.3, 1.0), 0.204, False, command)
    assert found == (("ditto", "drift"), expected)
    with pytest.raises(pfl.InputError, match="ditto, drift is in two of the folders"):
        leaderboard_cells.load([tmp_path / "a", tmp_path / "b"])


def test_times_of_the_benchmark(tmp_path):
    times = {"fedavg": {"median": 0.2, "prepare": 3.0, "seconds": [0.2, 0.1, 0.2]}}
    measured: dict = {"timings": times, "machine": {"processor": "a CPU"}, "quick": False}
    measured["ratios"] = []
    file = tmp_path / leaderboard.TIMINGS
    file.write_text(json.dumps({"i": measured}))
    leaderboard.write(tmp_path, FOUND)
    page = (tmp_path / "README.md").read_text()
    assert "| MB up | Round | Compile |" in page and "medians of 3 turns, on a CPU\n" in page
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| [`")]
    assert [row[-2:] for row in rows] == [["-", "- |"], ["1.00", "3.0 |"]]
    times["ditto"] = {"median": 0.5, "prepare": 4.04}
    measured["ratios"] = [{"what": of_fedavg("ditto"), "value": 2.4}]
    file.write_text(json.dumps({"i": measured}))
    leaderboard.write(tmp_path, FOUND)
    assert "| 0.20 | 2.40 | 4.0 |" in (tmp_path / "README.md").read_text()
    for other in ({"i": measured | {"quick": True}}, {"a": measured}):
        file.write_text(json.dumps(other))
        with pytest.raises(pfl.InputError, match="in full size"):
            leaderboard.timings(tmp_path)


def test_cells_that_cannot_be_compared(tmp_path):
    fine, other = cell([0.7, 0.9]), "--algorithms=ditto --rounds=8"
    three = {"0": 1.0, "1": 2.0, "2": 3.0}
    for place, changed, said in (
        (("ditto", "drift"), replace(fine, learning_rate=1.0), "did not choose among"),
        (("ditto", "drift"), replace(fine, accuracies=three), "for each seed of 0, 1"),
        (("ditto", "drift"), cell([0.7, 2.0]), "an accuracy in 0..100"),
        (("dito", "drift"), fine, "no such algorithm or setting"),
        (("ditto", "drift"), replace(fine, command=f"a b c {other}"), "fedavg in flags: rounds"),
        (("ditto", "drift"), replace(fine, command="a b c --rounds='8"), "can't be read: No clos"),
    ):
        with pytest.raises(pfl.InputError, match=said):
            leaderboard.write(tmp_path, {("fedavg", "drift"): fine, place: changed})
    assert not list(tmp_path.iterdir())
    with pytest.raises(pfl.InputError, match=r"sweep.csv does not exist"):
        leaderboard_cells.tried(tmp_path)
    (tmp_path / "sweep.csv").write_text("algorithm,learning_rate,feddwa.top_k,seed\nx,1,2,0\n")
    with pytest.raises(pfl.InputError, match="other hyperparameters than learning_rate"):
        leaderboard_cells.tried(tmp_path)
    leaderboard.write(tmp_path, FOUND)
    with (tmp_path / leaderboard_cells.CELLS).open("a+") as file:
        file.seek(0)
        file.write(file.readlines()[-1])
    with pytest.raises(pfl.InputError, match="is there twice"):
        leaderboard_cells.kept(tmp_path)


def test_the_documentation_has_the_page_of_its_file(tmp_path):
    docs = ROOT / "docs" / "leaderboard"
    for name in (leaderboard_cells.CELLS, leaderboard.TIMINGS):
        (tmp_path / name).write_bytes((docs / name).read_bytes())
    leaderboard.write(tmp_path, leaderboard_cells.kept(tmp_path))
    ours, theirs = ((at / leaderboard_cells.CELLS).read_text() for at in (tmp_path, docs))
    assert ours == theirs
    rows, shown = (
        [line for line in (place / "README.md").read_text().splitlines() if line.startswith("| [")]
        for place in (tmp_path, docs)
    )
    assert rows == shown and len(rows) > 70


def test_the_page_states_the_preset():
    known = flags.parse(["study", "--preset=study/leaderboard"], study.define)
    assert known["train_samples"].value == 300 and known["local_epochs"].value == 2
    assert known["dataset"].value == "fashion_mnist" and known["validation_fraction"].value == 0.2
    given = [word.split(":")[0] for word in known["setting"].value]
    assert given == list(leaderboard_cells.SETTINGS)


def test_leaderboard_without_runs(tmp_path):
    with pytest.raises(pfl.InputError, match="has no finished cell"):
        leaderboard_cells.load([tmp_path])
