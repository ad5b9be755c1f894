"""What a late client lost, and the patterns of late clients that the comparisons run."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import run_rounds, toy_federation
from tests.algorithms.harness import LATE_PATTERNS, LATE_ROUNDS, Case


@pytest.mark.parametrize(
    "name",
    [
        "fedavg_async",
        pytest.param("lga", marks=pytest.mark.thorough),
        pytest.param("fedasync", marks=pytest.mark.slow),
    ],
)
def test_what_a_late_client_lost_does_not_arrive(name):
    """A straggler whose training overflows in phase 0 has nothing to send in phase d."""
    federation = toy_federation(diverging=3, stragglers={3: 2})
    _, records = run_rounds(pfl.make_algorithm(name), federation, rounds=4, scored=())
    arrived = [bool(record["up"][3].any()) for record in records]
    weights = [record["matrices"]["mixing"][0, 3] for record in records]
    assert arrived == [False] * 4
    assert weights == [0] * 4
    sound = toy_federation(stragglers={3: 2})
    _, records = run_rounds(pfl.make_algorithm(name), sound, rounds=4, scored=())
    assert [bool(record["up"][3].any()) for record in records] == [False, False, True, True]


def test_the_patterns_have_what_they_are_named_for():
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS["nobody-arrives"])
    assert [len(arrivals) for arrivals in case.arrivals] == [0, 5, 0, 5, 0, 5, 0]
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS["code-map"])
    assert [3 in starts for starts in case.starts] == [t in (0, 3, 4) for t in range(7)]
    assert [3 in arrivals for arrivals in case.arrivals] == [t in (2, 3, 6) for t in range(7)]
    assert [3 in cohort for cohort in case.cohorts] == [t == 3 for t in range(7)]
