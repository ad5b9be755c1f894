"""What a late client lost, and the patterns of late clients that the comparisons run."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import LATE_PATTERNS, LATE_ROUNDS, Case


@pytest.mark.costly
@pytest.mark.parametrize("name", ["fedavg_async", "lga", "fedasync"])
def test_diverged_uploads_of_late_clients(name):
    """They do not arrive: who overflows in phase 0 has nothing to send in phase d."""
    federation = toy_federation(diverging=3, stragglers={3: 2})
    _, records = run_rounds(pfl.make_algorithm(name), federation, rounds=4, scored=())
    arrived = [bool(record["up"][3].any()) for record in records]
    weights = [record["matrices"]["mixing"][0, 3] for record in records]
    assert arrived == [False] * 4
    assert weights == [0] * 4
    sound = toy_federation(stragglers={3: 2})
    _, records = run_rounds(pfl.make_algorithm(name), sound, rounds=4, scored=())
    assert [bool(record["up"][3].any()) for record in records] == [False, False, True, True]


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "settings", "kept"),
    [
        ("fedavgm", {}, ("server", "optimizer")),
        ("feddistill", {}, ("models", "total", "total_round")),
        ("feddyn", {}, ("server", "average", "drift", "gradients")),
        ("fedpac", {}, ("body", "heads", "exist", "means")),
        ("fedsam", {"global_momentum": True}, ("server", "direction")),
        ("sfl", {"graph": "neighbours"}, ("server", "models")),
    ],
)
def test_rounds_in_which_nobody_takes_part_change_nothing(name, settings, kept):
    late = dict.fromkeys(range(5), 1)  # on time in every third round alone
    federation = toy_federation(stragglers=late, validation_size=0, model=TanhNetwork())
    states = states_of(pfl.make_algorithm(name, settings), federation, 5)
    for field in kept:
        parts = [getattr(state, field) for state in states]
        for still in (0, 1, 3, 4):
            assert_close(parts[still + 1], parts[still], f"{field} in round {still + 1}", 0)
        leaves = zip(*map(jax.tree.leaves, parts[2:4]), strict=True)
        assert any((old != new).any() for old, new in leaves), field


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "settings", "numbers"),
    [
        ("ccvr", {"every": True, "per_class": 2}, ("numbers_up", "forward_samples")),
        ("floco", {"warmup_fraction": 0.0}, ("numbers_up", "numbers_down", "local_steps")),
    ],
)
def test_late_clients_do_no_further_work(name, settings, numbers):
    """They send no features, and take no part in a projection."""
    federation = toy_federation(stragglers={3: 1}, model=TanhNetwork(), validation_size=0)
    _, (record,) = run_rounds(pfl.make_algorithm(name, settings), federation, 1, scored=())
    asked = np.array([1, 1, 1, 0, 1])
    for number in numbers:
        np.testing.assert_array_equal(record["clients"][number] > 0, asked)
    np.testing.assert_array_equal(record["down"][:, 0], 2 * asked)


def test_late_patterns():
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS["nobody-arrives"])
    assert [len(arrivals) for arrivals in case.arrivals] == [0, 5, 0, 5, 0, 5, 0]
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS["code-map"])
    row = np.asarray(case.federation.data.ids).tolist().index(3)
    for rows, rounds in (
        (case.starts, (0, 3, 4)),
        (case.arrivals, (2, 3, 6)),
        (case.cohorts, (3,)),
    ):
        assert [row in now for now in rows] == [t in rounds for t in range(LATE_ROUNDS)]
