"""A sweep's cells: what is inside a program, what is a queue, and the names of their folders."""

import re

import pytest

from experiments import sweep
from experiments.cli.algorithms import parse_algorithms
from experiments.grid.axes import Program, setting_words


def test_a_sweep_runs_in_one_process(capsys):
    assert sweep.main(["sweep", "--distributed=auto", "--grid=batch_size=1,2"]) == 2
    assert "one process, without --distributed: --mesh=runs:4" in capsys.readouterr().err


def algorithms(*names):
    return parse_algorithms(names, [])


def test_algorithms_have_our_names_whatever_was_typed():
    grid = sweep.parse_grid(["FedDWA.top_k=1,3", "batch_size=5"])
    assert list(grid) == ["feddwa.top_k", "batch_size"]
    (cell,) = sweep.programs(algorithms("Fed-DWA"), grid)
    assert cell.folder == "feddwa-batch_size=5"
    args = cell.parsed(["sweep", "--set=FEDDWA.guidance=last", "--set=Fed-Avg.server_rate=1"])
    assert args.set == ["feddwa.guidance=last"]


def test_a_budget_draws_settings_of_each_algorithm():
    grid = sweep.parse_grid(["feddwa.top_k=1,3,5", "batch_size=5,10", "learning_rate=1,2"])
    whole = sweep.programs(algorithms("fedavg", "feddwa"), grid)
    assert sweep.drawn(whole, None) == sweep.drawn(whole, 12) == whole
    queue = sweep.drawn(whole, 3)
    for name in ("fedavg", "feddwa"):
        every = [(c.folder, one) for c in whole if c.algorithm == name for one in c.inside]
        kept = [(c.folder, one) for c in queue if c.algorithm == name for one in c.inside]
        assert len(kept) == 3 and [one for one in every if one in kept] == kept
    assert kept != every[:3]  # of feddwa: drawn, not the first
    assert queue == sweep.drawn(whole, 3) and all(cell.inside for cell in queue)


def test_strengths_of_attacks_and_rules_are_inside_a_program():
    grid = sweep.parse_grid(["attack_factor=1,10", "aggregator_radius=0.5,2"])
    (cell,) = sweep.programs(algorithms("fedavg"), grid)
    found = [(one["attack_factor"], one["aggregator_radius"]) for one in cell.settings]
    assert found == [(1.0, 0.5), (1.0, 2.0), (10.0, 0.5), (10.0, 2.0)]
    words = setting_words(cell.inside[1])
    assert words == ["--attack_option=factor=1", "--aggregator_option=radius=2"]


def test_what_is_inside_a_program_and_what_is_queued():
    grid = sweep.parse_grid(["feddwa.top_k=1,3", "feddwa.guidance=epochs,last", "batch_size=5,10"])
    queue = sweep.programs(algorithms("fedavg", "feddwa"), grid)
    starts = ("fedavg", "feddwa-feddwa.guidance=epochs", "feddwa-feddwa.guidance=last")
    wanted = [f"{start}-batch_size={size}" for start in starts for size in (5, 10)]
    assert [cell.folder for cell in queue] == wanted
    assert queue[0].inside == [{}]
    assert queue[2].inside == [{"feddwa.top_k": "1"}, {"feddwa.top_k": "3"}]
    own = ["--set=feddwa.guidance=epochs", "--batch_size=5"]
    assert queue[2].words() == ["--algorithms=feddwa", *own]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("p/a.npz", "p_a.npz"),
        ("a/b", "a\\b"),
        ("None", "none"),
        ("a b", "a_b"),
        ("x" * 300 + "1", "x" * 300 + "2"),
        ("ä", "ö"),
        ("é", "e\u0301"),
        ("1-batch_size=2", "1"),
        ("..", "_."),
    ],
)
def test_two_values_never_share_a_folder(first, second):
    result = [Program("m", {"partition_file": value}, [{}]).folder for value in (first, second)]
    assert len({name.lower() for name in result}) == 2
    assert all(re.fullmatch(r"[a-z0-9_.+=~-]{1,120}", name) for name in result)


def test_changing_data():
    names = ["alpha", "num_clients", "learning_rate", "feddwa.top_k", "input_scaling", "rounds"]
    names += ["drift_share", "attackers"]
    assert sweep.changing_data(names) == ["alpha", "num_clients", "drift_share"]
