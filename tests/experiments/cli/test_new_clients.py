"""New clients of a run, and the table of the models that each algorithm gives them."""

import pandas as pd
import pytest

from experiments.cli import new_clients
from experiments.outputs import run_files
from tests.experiments.small_runs import SMALL, arrays, read_rows, run_in

WORDS = (*SMALL, "--algorithms=fedavg", "--num_clients=5")
NEW = (*WORDS, "--new_clients=2", "--new_client_steps=0,3", "--new_client_samples=0.5,1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "out"
    assert run_in(folder, *NEW) == 0
    return folder


def test_rows_of_new_clients(finished):
    rows = read_rows(finished / "fedavg" / "new_clients.csv")
    assert {row["client"] for row in rows} == {"3", "4"}
    points = {(r["seed"], r["part_of_samples"], r["local_steps"]) for r in rows}
    assert points == {(s, p, k) for s in "01" for p in ("0.5", "1.0") for k in "03"}
    assert len(rows) == 16
    scores = arrays(finished / "fedavg")["personalized/test/accuracy"]
    assert scores.shape[-1] == 3  # only the clients that took part


def test_finished_run_prints_new_clients(finished, capsys):
    assert run_in(finished, *NEW) == 0
    assert (finished / "new_clients.md").read_text() in capsys.readouterr().out


def test_table_of_new_clients(tmp_path):
    (tmp_path / "fedavg").mkdir()
    rows = [(0, 3, 1.0, 1, 0.25), (1, 3, 1.0, 1, 0.5), (0, 4, 1.0, 1, 0.75), (0, 3, 0.125, 2, 0.75)]
    columns = [*new_clients.COLUMNS, "accuracy"]
    path = tmp_path / "fedavg" / run_files.NEW_CLIENTS
    run_files.write_csv(path, pd.DataFrame(rows, columns=columns))
    new_clients.write_table(tmp_path, ["fedavg"])
    table = (tmp_path / new_clients.TABLE).read_text()
    assert "| 1 step, 100 % of samples | 2 steps, 12.5 % of samples |" in table
    assert "| fedavg | 50.00 | 75.00 |" in table
