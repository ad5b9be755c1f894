"""The leaderboard: which rows it has, their order, the files, and its settings."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import study
from experiments.benchmarks.cases import of_fedavg
from experiments.cli import flags
from tools import leaderboard


def run(last, num_clients=4, scored=4, rate=0.3):
    """What the page looks at: accuracies [S, H, E], traffic, flags."""
    curve = np.array([[[0.1, one]] for one in last])
    summary = {
        "scored_clients": list(range(scored)),
        "traffic_mb_per_client_round": {"up": 0.204, "down": 2.0},
        "training": {"learning_rate": rate},
    }
    values = {"algorithms": ["ditto"], "rounds": 7, "setting": [], "validation_fraction": 0.2}
    return SimpleNamespace(
        result=SimpleNamespace(curve=lambda: curve, rounds=7), summary=summary,
        config={"flags": {"comparison": values | {"learning_rate": 0.3}}},
        seeds=(0, 1), num_clients=num_clients,
    )  # fmt: skip


def cells(**rows):
    return {(name, one): cell for name, cell in rows.items() for one in leaderboard.SETTINGS}


FOUND = cells(fedavg=run([0.5, 0.6], rate=0.1), ditto=run([0.7, 0.9]), hetlora=run([0.5, 0.6]),
              waffle=run([0.9, 0.9], scored=1))  # fmt: skip
FOUND["apfl", "drift"] = run([1.0, 1.0])


def test_rows_that_are_no_comparison_are_left_out_with_the_reason():
    names, left_out = leaderboard.select(FOUND)
    assert names == ["ditto", "fedavg"]
    assert left_out["hetlora"] == "the same numbers as `fedavg`"
    assert left_out["waffle"] == "it has models for some of the clients"
    assert left_out["apfl"] == "it lacks a setting"
    assert left_out["fedrep"] == "not run"
    assert set(left_out) | set(names) == set(pfl.core.ALGORITHMS)
    with pytest.raises(pfl.InputError, match="finished cells of all 6 settings"):
        leaderboard.select({("apfl", "drift"): run([1.0, 1.0])})


def test_files(tmp_path):
    leaderboard.write(tmp_path, FOUND, [0.01, 0.1, 0.3])
    page = (tmp_path / "README.md").read_text()
    assert "2 algorithms in six settings" in page and "7 rounds" in page
    assert "tries the learning\nrates 0.01, 0.1 and 0.3 with one seed" in page
    assert "Compile" not in page
    assert "| [`ditto`](../algorithms/ditto.md) | 1.0 | 80.00 ± " in page
    assert "rows, which choose it everywhere: `fedavg`." in page.replace("\n", " ")
    rows = list(csv.DictReader((tmp_path / "leaderboard.csv").open()))
    assert len(rows) == len(FOUND)
    first = next(row for row in rows if row["algorithm"] == "ditto")
    assert first["accuracy_percent_seed_1"] == "90.0000" and first["learning_rate"] == "0.3"
    words = ["--algorithms=ditto", "--rounds=7", "--validation_fraction=0.2", "--learning_rate=0.3"]
    assert first["command"].split() == ["python", "-m", "experiments.run", *words]


def test_times_of_the_benchmark(tmp_path):
    times = {"fedavg": {"median": 0.2, "prepare": 3.0, "seconds": [0.2, 0.1, 0.2]}}
    measured: dict = {"timings": times, "machine": {"processor": "a CPU"}, "quick": False}
    measured["ratios"] = []
    file = tmp_path / leaderboard.TIMINGS
    file.write_text(json.dumps({"i": measured}))
    leaderboard.write(tmp_path, FOUND, [0.1])
    page = (tmp_path / "README.md").read_text()
    assert "| MB up | Round | Compile |" in page and "medians of 3 turns, on a CPU\n" in page
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| [`")]
    assert [row[-2:] for row in rows] == [["-", "- |"], ["1.00", "3.0 |"]]
    times["ditto"] = {"median": 0.5, "prepare": 4.04}
    measured["ratios"] = [{"what": of_fedavg("ditto"), "value": 2.4}]
    file.write_text(json.dumps({"i": measured}))
    leaderboard.write(tmp_path, FOUND, [0.1])
    assert "| 0.20 | 2.40 | 4.0 |" in (tmp_path / "README.md").read_text()
    for other in ({"i": measured | {"quick": True}}, {"a": measured}):
        file.write_text(json.dumps(other))
        with pytest.raises(pfl.InputError, match="in full size"):
            leaderboard.timings(tmp_path)


def test_learning_rates_are_those_of_the_studies(tmp_path):
    """Two studies' rows, each with the same rates in its tuning."""
    for study_, row, rates in (("a", "local", "1 0.3"), ("b", "ditto", "0.3 1"), ("c", "x", "1")):
        place = tmp_path / study_ / "tuning" / "drift" / row
        place.mkdir(parents=True)
        lines = [f"{row},{rate},0,50.0,50.0" for rate in rates.split()]
        heading = "algorithm,learning_rate,seed,validation_percent,test_percent"
        (place / "sweep.csv").write_text("\n".join([heading, *lines]))
    assert leaderboard.tried([tmp_path / "a", tmp_path / "b"]) == [0.3, 1.0]
    with pytest.raises(pfl.InputError, match="have different learning rates"):
        leaderboard.tried([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(pfl.InputError, match="has no tuning"):
        leaderboard.tried([tmp_path])


def test_the_page_states_the_preset():
    known = flags.parse(["study", "--preset=study/leaderboard"], study.define)
    assert known["train_samples"].value == 300 and known["local_epochs"].value == 2
    assert known["dataset"].value == "fashion_mnist" and known["validation_fraction"].value == 0.2
    given = [word.split(":")[0] for word in known["setting"].value]
    assert given == list(leaderboard.SETTINGS)


def test_without_any_run(tmp_path):
    with pytest.raises(pfl.InputError, match="has no finished cell"):
        leaderboard.load([tmp_path])
