"""What a late client lost, and the patterns of late clients that the comparisons run."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import run_rounds, toy_federation
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
