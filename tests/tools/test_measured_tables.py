"""The tables of all algorithms: rows, marks, pages, and how well orders agree."""

from types import SimpleNamespace

import numpy as np
import pytest

import fedjax_pfl as pfl
from tools import measured_tables


def result(*last, gflop=1.0, seconds=1.0):
    """What the tables look at: accuracies [S, H, E] of three rounds, traffic, work and time."""
    curve = np.array([[[0.1, 0.2, one]] for one in last])
    summary = {
        "accuracy": {"worst_decile": min(last)},
        "traffic_mb_per_client_round": {"up": 0.5, "down": 2.0},
        "computation": {"gflop_per_client_round": gflop},
        "seconds_per_round": seconds,
    }
    known = {"curve": lambda: curve, "summary": lambda: summary, "training": {"learning_rate": 0.1}}
    return SimpleNamespace(**known)


FOUND = {
    "dirichlet": {"fedavg": result(0.5, 0.6), "ditto": result(0.7, 0.9, gflop=2.0, seconds=3.0)},
    "practical1": {"fedavg": result(0.4, 0.4)},
}


def test_rows_are_in_order_and_what_is_missing_is_left_blank():
    lines = measured_tables.grid(FOUND, measured_tables.accuracy).to_markdown().splitlines()
    assert lines[0] == "| Algorithm | Dir(0.1) | practical-1 |"
    assert lines[2].startswith("| `ditto` | 80.00 ± ") and lines[2].endswith(" | - |")
    assert lines[3].startswith("| `fedavg` | 55.00 ± ") and lines[3].endswith("| 40.00 ± 0.00 |")


def test_time_is_over_fedavgs_and_over_as_many_flops():
    lines = measured_tables.costs(FOUND["dirichlet"]).to_markdown()
    assert lines.splitlines()[-1] == "| `ditto` | 0.1 | 0.500 | 2.000 | 2.000 | 3.00 | 1.50 |"


def test_orders():
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert measured_tables.tau(a, 10 * a) == 1 and measured_tables.tau(a, -a) == -1
    assert measured_tables.tau(a, np.array([2.0, 1.0, 3.0, 4.0])) == pytest.approx(4 / 6)
    table = measured_tables.stability({"dirichlet": FOUND["dirichlet"]})
    assert "| Dir(0.1) | 1.00 |" in table.to_markdown()


def test_without_any_run(tmp_path):
    with pytest.raises(pfl.InputError, match=r"has no folder dirichlet, practical1, "):
        measured_tables.main(["tables", str(tmp_path), str(tmp_path)])
