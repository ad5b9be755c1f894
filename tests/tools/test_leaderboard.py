"""The leaderboard: its rows, cells, queue and page."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import study, sweep
from experiments.cli import flags
from tools import leaderboard, leaderboard_board, leaderboard_cells, leaderboard_queue
from tools import leaderboard_findings as findings
from tools.benchmark.cases import of_fedavg
from tools.leaderboard_cells import Cell, Row, Scores, Task

NAMES = ("local", "fedavg", "fedprox", "waffle")
TINY = ("--dataset=digits", "--num_clients=4", "--rounds=2", "--validation_fraction=0.2",
        "--model=softmax", "--eval_every=2", "--num_seeds=1", "--moments=both")  # fmt: skip
FEDPROX = Task("fedprox", "drift", ("--algorithms=fedprox", *TINY, "--grid=learning_rate=0.01,0.1",
                                "--grid=fedprox.proximal_weight=0.1,1"))  # fmt: skip
SIX = list(leaderboard.SETTINGS)[:6]
TASKS = [Task(name, s, (f"--algorithms={name}",)) for s in SIX for name in NAMES]


def cell(task, received, trained, **more):
    """A cell with these accuracies of two clients in two seeds."""
    scores = {
        name: Scores({"learning_rate": "0.1"}, "python", [list(ones), list(ones)], steps=24.0)
        for name, ones in (("received", received), ("trained", trained))
    }
    validation = {"received": [100 * received[0], 10.0], "trained": [float("nan"), 70.0]}
    tried = {"learning_rate": ["0.1", "1"]}
    facts = (task.algorithm, task.setting, task.revision, "1", task.command)
    return Cell(*facts, tried, validation, scores, [1, 2], [100, 100], 0.2, 0.2, 36.0, **more)


def cells():
    """Cells in which local is the best, fedprox the second, and waffle failed."""
    accuracies = {"local": ((0.9, 0.8), (0.9, 0.8)), "fedavg": ((0.5, 0.6), (0.8, 0.6)),
                  "fedprox": ((0.8, 0.8), (0.7, 0.7)), "waffle": ((0, 0), (0, 0))}  # fmt: skip
    found = {(one.setting, one.algorithm): cell(one, *accuracies[one.algorithm]) for one in TASKS}
    for at, one in found.items():
        if at[1] == "waffle":
            found[at] = replace(one, scores={}, error="InputError: too many clients.")
    return found


def test_the_table_has_every_algorithm_with_values_that_it_takes(tmp_path, monkeypatch):
    rows = leaderboard_cells.rows()
    assert set(rows) == set(pfl.core.ALGORITHMS)
    for name, row in rows.items():
        trials = 1
        for word in row.grids("0.003,0.01,0.03,0.1,0.3"):
            trials *= len(set(word.split(",")))
        assert trials == 15, name
        assert row.origin or not row.grid, name
    faster = Row("apple", "relation_rate=1,2", factor=3)
    assert faster.grids("0.01,0.1") == ["learning_rate=0.03,0.3", "apple.relation_rate=1,2"]
    assert Row("local").grids("0.01,0.1") == ["learning_rate=0.0068,0.01,0.015,0.068,0.1,0.15"]
    text = leaderboard_cells.TABLE.read_text()
    for wrong, said in (
        (text.replace("[fedavg]\nnormalized = true\n", ""), "each algorithm: see fedavg"),
        (text.replace("epochs=2,4,8", "epochs=0,4,8"), "guidance_epochs"),
        (text.replace("guidance_epochs=2", "guidanceepochs=2"), "guidance_epochs"),
        (text.replace('from = "paper, Figure 3', 'form = "paper'), "see feddwa"),
    ):
        (tmp_path / "rows.toml").write_text(wrong)
        monkeypatch.setattr(leaderboard_cells, "TABLE", tmp_path / "rows.toml")
        with pytest.raises(pfl.InputError, match=said):
            leaderboard_cells.rows.__wrapped__()


def test_tasks_are_the_presets_settings_one_after_the_other():
    tasks = leaderboard_cells.tasks()
    settings = list(dict.fromkeys(one.setting for one in tasks))
    assert settings == list(leaderboard.SETTINGS)
    assert [tasks[25].setting, tasks[25 * 7].algorithm] == ["grouped", "ifca"]  # first, 25 rows
    assert [one.setting for one in tasks if one.algorithm == "fedbn"] == settings[-2:]
    assert [one.setting for one in tasks[-49:-24]] == ["cifar10_sampled"] * 25
    runs = [one for one in tasks if one.setting == "sampled"]
    assert [one.algorithm for one in runs] == [
        name for name, row in leaderboard_cells.rows().items() if not row.out
    ]
    one = next(one for one in runs if one.algorithm == "cfl")
    assert {"--num_clients=100", "--set=cfl.first_split=4", "--num_seeds=1", "--moments=both",
            "--grid=cfl.largest_above=0.4,0.8,1.6"} <= set(one.words)  # fmt: skip
    known = flags.parse(["study", f"--preset={leaderboard_cells.PRESET}"], study.define)
    assert known.train_samples == 300 and known.validation_fraction == 0.2
    assert known.rounds == 20 and known.local_epochs == 2  # as the page says


def test_a_cell_is_kept_whole_and_measured_again_when_it_is_another(tmp_path):
    one = cell(FEDPROX, (0.5, 0.25), (float("nan"), 1.0))
    one.write(tmp_path)
    (found,) = leaderboard_cells.kept(tmp_path).values()
    assert found.algorithm == "fedprox" and np.isnan(found.scores["trained"].by_client[:, 0]).all()
    assert found.scores["received"] == one.scores["received"] and found.seeds == [1, 2]
    np.testing.assert_array_equal(found.validation["trained"], [np.nan, 70])
    of = leaderboard_cells.missing
    assert of([FEDPROX], {("drift", "fedprox"): found}) == []
    for other in (replace(found, revision="1.0"), replace(found, command="x")):
        assert of([FEDPROX], {("drift", "fedprox"): other}) == [FEDPROX]
    assert of([FEDPROX], {}) == [FEDPROX]
    path = tmp_path / "drift" / "fedprox.json"
    values = json.loads(path.read_text())
    for wrong in (values | {"seeds": [1]}, values | {"more": 1}, {}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(pfl.InputError, match="not the file of a cell"):
            leaderboard_cells.kept(tmp_path)


def test_the_queue_measures_what_is_missing(tmp_path, monkeypatch, capsys):
    refused = replace(FEDPROX, setting="grouped", words=(*FEDPROX.words, "--alpha=-1"))
    monkeypatch.setattr(leaderboard_queue, "tasks", lambda: [refused, FEDPROX])
    words = ["queue", str(tmp_path), "--compilation_cache="]
    assert leaderboard_queue.main([*words, "--hours=-1"]) == 0 and not list(tmp_path.iterdir())
    assert leaderboard_queue.main([*words, "--only=drif"]) == 2
    assert "Did you mean 'drift'" in capsys.readouterr().err
    run, sizes = sweep.run_program, []
    monkeypatch.setattr(sweep, "run_program", lambda program, *rest: (
        sizes.append(len(program.inside)) or run(program, *rest)))  # fmt: skip
    assert leaderboard_queue.main(words) == 0
    assert sizes == [4, 1, 1]  # what is scored runs alone, as its command does
    found = leaderboard_cells.kept(tmp_path)
    assert "alpha" in found["grouped", "fedprox"].error
    one = found["drift", "fedprox"]
    assert one.seeds == [1, 2, 3] and len(one.validation["trained"]) == 4 and not one.error
    assert one.tried["fedprox.proximal_weight"] == ["0.1", "1", "0.1", "1"]
    for moment, scores in one.scores.items():
        best = int(np.argmax(one.validation[moment]))
        assert scores.chosen == {name: values[best] for name, values in one.tried.items()}
        assert f"--set=fedprox.proximal_weight={scores.chosen['fedprox.proximal_weight']}" in (
            scores.command
        )
        assert scores.by_client.shape == (3, 4) and (scores.by_client > 0.2).all()
        assert scores.steps is not None and scores.steps > 1
    monkeypatch.setattr(sweep, "planned", lambda *_: pytest.fail("measured again"))
    assert leaderboard_queue.main(words) == 0


def test_a_stopped_queue_leaves_no_cell(tmp_path, monkeypatch):
    def stopped(task, words, folder, stop):
        stop._say(signal.SIGTERM)  # as the thread that ends the process at once
        stop.signal = signal.SIGTERM
        return list(folder.iterdir())  # fails, as the folder is gone

    monkeypatch.setattr(leaderboard_queue, "tasks", lambda: [FEDPROX])
    monkeypatch.setattr(leaderboard_queue, "measured", stopped)
    assert leaderboard_queue.main(["queue", str(tmp_path)]) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_what_is_ranked():
    found = cells()
    board = leaderboard_board.Board.of(found, TASKS)
    assert board.names == ["local", "fedprox", "fedavg"]
    assert leaderboard_board.chosen_moment(found["drift", "fedavg"]) == "trained"
    assert leaderboard_board.chosen_moment(found["drift", "fedprox"]) == "received"
    assert leaderboard_board.scores(found["drift", "fedavg"], "chosen") == pytest.approx([70, 70])
    local, fedavg = (
        leaderboard_board.of_moment(found["drift", name], "chosen").by_client
        for name in ("local", "fedavg")
    )
    assert leaderboard_board.harmed(fedavg, local, np.array([100, 100])) == 100
    assert leaderboard_board.harmed(local, fedavg, np.array([100, 100])) == 0
    assert leaderboard_board.harmed_by_seed(board, "local", "trained") == 0  # seeds are alike
    assert board.hours() == {}
    del found["drift", "fedprox"], found["drift", "local"]
    found["grouped", "fedprox"] = replace(found["grouped", "fedprox"], command="of other flags")
    found["features", "local"] = replace(found["features", "local"], revision="0.1")
    with pytest.raises(pfl.InputError, match="4 settings have cells of 90% of the first 25"):
        leaderboard_board.Board.of(found, TASKS)
    del found["grouped", "fedprox"]
    found |= {("grouped", "fedprox"): cells()["grouped", "fedprox"]}
    board = leaderboard_board.Board.of(found, TASKS)
    assert "drift" not in board.settings and board.names == ["local", "fedprox", "fedavg"]
    assert board.changed("local") and not board.changed("fedprox")
    assert board.hours() == pytest.approx({"features": 0.01, "drift": 0.02})


def test_a_first_row_that_depends_on_a_setting_and_a_wrong_moment():
    found = cells()
    for one in TASKS:
        if one.algorithm == "fedprox" and one.setting in SIX[:3]:
            found[one.setting, "fedprox"] = cell(one, (0.95, 0.95), (0.96, 0.96))
    board = leaderboard_board.Board.of(found, TASKS)
    chosen, *_ = findings.rank_tests(board, dict(zip(SIX, "abcdef", strict=True))).splitlines()
    changes = "; ".join(f"`fedprox` without {one}" for one in "def")
    assert chosen.endswith(f"`local`. Leaving out one setting changes the first ({changes}).")
    assert findings.other_moments(board).startswith("17 % of cells the other moment has")
    assert findings.other_moments(board).endswith("clearly in 17 %")


def test_rivals_are_those_that_the_papers_tables_have_below():
    most = "fedavg fedprox fedamp fedfomo apple cfl ifca"  # above FedAMP and APPLE in 5 of 7
    assert findings.rivals("cwfedavg") == most.split()
    assert "weight_erosion" not in findings.rivals("waffle")  # above it in 6 of 8
    spfl = "fedavg fedupdate perfedavg_spfl pfedme spfl_w"  # of all columns half
    assert findings.rivals("spfl") == spfl.split()
    assert findings.rivals("plga")[:2] == ["fedavg_async", "fedavg_sync"]
    assert not {"pfedla", "heurpfedla"} & {*findings.rivals("pfedla")}


def test_another_draw_of_a_partition():
    found, titles = cells(), dict(zip(SIX, "abcdef", strict=True))
    again = [Task(name, f"redrawn_{SIX[0]}", ("--x",)) for name in NAMES[:3]]
    turned = {"local": (0.8, 0.8), "fedavg": (0.7, 0.7), "fedprox": (0.9, 0.8)}
    redone = {
        (one.setting, one.algorithm): cell(one, *[turned[one.algorithm]] * 2) for one in again
    }
    board = leaderboard_board.Board.of(found | redone, TASKS + again)
    assert findings.redrawn(board, titles) == (
        "With another draw of a's partition, 67 % of the pairs of 3 rows keep their order; of 3 "
        "that were clearly ordered, 2 are so again and 1 clearly the other way."
    )
    assert "7 settings" not in findings.rank_tests(board, titles)  # it is no other data
    assert findings.redrawn(leaderboard_board.Board.of(found, TASKS), titles) == "Not measured."


def test_a_tuned_hyperparameter_without_effect_is_named():
    found = cells()
    tried = {"learning_rate": ["0.1", "0.1", "1", "1"], "fedprox.a": ["1", "2", "1", "2"]}
    for setting, last in ((SIX[0], 0.2), (SIX[1], 0.2), (SIX[2], 0.4)):
        lost = [float("nan"), float("nan")]
        same = {"received": [*lost, 2.0, 2.0], "trained": [0.1, 0.1, 0.2, last]}
        old = found[setting, "fedprox"]
        found[setting, "fedprox"] = replace(old, tried=tried, validation=same)
    board = leaderboard_board.Board.of(found, TASKS)
    assert leaderboard_board.without_effect(board).endswith("settings: `fedprox` (2).")


def test_clients_without_a_score_are_named():
    found, one = cells(), TASKS[2]
    found[one.setting, one.algorithm] = cell(one, (float("nan"), 0.5), (0.5, 0.5))
    said = leaderboard_board.without_score(leaderboard_board.Board.of(found, TASKS))
    assert said.endswith("clients of `fedprox` (dirichlet, received: 2 of 4).")


def test_the_page(tmp_path, monkeypatch):
    rivals = {"fedprox": ["local", "fedavg"], "local": ["fedavg"]}
    monkeypatch.setattr(findings, "PAPERS", rivals)
    monkeypatch.setattr(findings, "rivals", rivals.__getitem__)
    found = cells()
    few = [Task(name, "cifar10_sampled", ("--x",)) for name in ("local", "fedavg")]
    found |= {(one.setting, one.algorithm): cell(one, (0.9, 0.8), (0.9, 0.8)) for one in few}
    del found["drift", "fedprox"]
    found |= {at: replace(one, revision="0.1") for at, one in found.items() if "features" in at}
    for at, one in found.items():
        if at[1] == "fedprox":
            said = {"self_weight": 0.97, "remarks": ["a in 2 of 3", "b"], "steps": 36.0}
            own = replace(one.scores["received"], **said)
            found[at] = replace(one, scores={**one.scores, "received": own})
    ratios = [{"what": of_fedavg("fedprox"), "value": 2.4}]
    timings = {"timings": {"fedprox": {"prepare": 4.04}}, "machine": {"processor": "a CPU"}}
    timings |= {"ratios": ratios, "quick": False}
    (tmp_path / leaderboard.TIMINGS).write_text(json.dumps({"i": timings}))
    leaderboard.write(tmp_path, leaderboard_board.Board.of(found, TASKS + few))
    page = (tmp_path / "README.md").read_text()
    assert "Of the first 12, `fedavg` are chosen as trained" in page
    short = "First by mean rank is `local`, *chosen* as trained in 0 of 5 settings; "
    assert f"{short}1 of the 2 other rows can be told apart" in page
    assert "As received the first is `local`, as trained `local`. Less than a tenth" in page
    assert "above `local` in Dirichlet, Grouped, Pathological, 100 clients, sampled, Fea" in page
    assert "*3 rows in 5 settings" in page and "Compile: seconds, on a CPU." in page
    row = next(line for line in page.splitlines() if line.startswith("| [`fedprox`]"))
    assert "md) * | 2.0 | 2-2 | 0 | 80.00 | 70.00 | 80.00 | 80.00 | 70.00 |" in row
    assert row.endswith("| 0.97-0.97 | 1.50 | 0.40 | 2.40 | 4.0 |")
    assert "clients of `fedprox` (5) end with a mean self-weight above 95 % in so many" in page
    assert "training. 0 of these 5 are clearly above `local` and 5 clearly below." in page
    assert "own remarks: `fedprox`: a (5 of 5 settings); `fedprox`: b (5 of 5 settings)." in page
    finite = "the aggregated values of {} were not finite and were not used, first in round 3"
    for who in ("client 3", "clients 3, 7 (b, c)", "12 clients (0, 1, ...)"):
        said = leaderboard_board.kind(finite.format(who))
        assert said == "the aggregated values were not finite"
    assert "| `fedavg` | 70.00 ± 0.00 t |" in page and "| `local` | 85.00 ± 0.00 |" in page
    assert "Drift |" not in page and "| `local` | 85.00 ± 0.00 |" in page
    line = "| Grouped | 55.0 | 70.0 | 85.0 | `local` (received) | 85.0 | +0.0 ± 0.0 | 0 | 1 of 3 |"
    assert line in page
    assert "marked *: `local`, `fedprox`, `fedavg`." in page and "took 0.2 CPU hours" in page
    assert "by 90 degrees) takes about 0.0 CPU hours." in page
    assert "- `waffle`: features: InputError: too many" in page and "- `fedbn`: no network" in page
    claim = "2 of 2 rivals run (`local`, `fedavg`). *Chosen*: above all of them in 0 of 5 settings,"
    assert f"- [`fedprox`](../algorithms/fedprox.md), {claim} clearly in 0; clearly" in page
    assert (
        "*Received*: above all of them in 0 of 5 settings, clearly in 0; clearly below one in 5"
        in page
    )
    assert " (`local` in 5). *Trained*:" in page and "Leaving out one setting keeps" in page
    assert "Chosen, 3 rows in 5 settings.**" in page and "Trained, 2 rows in 6 settings.**" in page
    assert "| `local` | smallest learning_rate |" in page and "number of settings: none." in page
    assert "sampled: of 1 rivals it is above 0 as chosen, 0 as received, 0 as trained." in page
    assert (tmp_path / "ranks.png").read_bytes()[1:4] == b"PNG"
    (tmp_path / leaderboard.TIMINGS).write_text(json.dumps({"i": timings | {"quick": True}}))
    with pytest.raises(pfl.InputError, match="in full size"):
        leaderboard.timings(tmp_path)


def test_the_repositorys_cells_can_be_read():
    folder = Path(__file__).resolve().parents[2] / "docs" / "leaderboard" / "cells"
    found = leaderboard_cells.kept(folder)
    every = {(one.setting, one.algorithm): one for one in leaderboard_cells.tasks()}
    assert found and found.keys() <= every.keys()
    assert all(one.command == every[at].command for at, one in found.items())
