"""Weight Erosion against its reference; where Alice is absent, idle or diverges."""

import numpy as np
import pytest

from fedjax_pfl.testing.toys import (
    OverflowingNormed,
    assert_close,
    run_rounds,
    states_of,
    toy_federation,
)
from tests.algorithms.alices import PATTERNS, assert_alices, row_of_alice
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import weight_erosion

algorithm = maker("weight_erosion")


def check(now):
    assert_alices(now, copies=1)
    weights = now.wanted["weights"]
    np.testing.assert_allclose(now.record["matrices"]["mixing"], [weights], 1e-9, 1e-9)
    shown = np.nan_to_num(now.clients["weight"])  # NaN for those who are absent
    np.testing.assert_allclose(shown, weights, 1e-9, 1e-9)


def assert_some_eroded(one):
    alpha = one.states[-1].alpha
    assert 0 < alpha.min() < 1 or (alpha == 0).any()


test_reference, test_contract = comparison(
    "weight_erosion",
    weight_erosion.run,
    settings={"distance_penalty": 0.2, "size_penalty": 0.5},
    variants={"first": {}, "another-alice": {"alice": 3}},
    patterns=PATTERNS,
    given=lambda one: {"alice": row_of_alice(one), "batch_size": 4},
    states={"server": "alice", "alpha": "alpha"},
    clients={"distance": "distances"},
    steps=(),
    copies=None,
    check=check,
    finish=assert_some_eroded,
)


@pytest.mark.costly
def test_weight_erosion_without_a_step_of_alice():
    states = states_of(algorithm(alice=2, distance_penalty=0.2), toy_federation(drop_last=True))
    np.testing.assert_array_equal(states[-1].alpha, np.ones(5))


@pytest.mark.costly
def test_weight_erosion_in_rounds_without_alice():
    federation = toy_federation(stragglers={0: 1}, diverging=3)
    states, records = run_rounds(algorithm(distance_penalty=0.2), federation, rounds=3, scored=())
    for t, present in enumerate((False, False, True)):
        np.testing.assert_array_equal(records[t]["up"][:, 0], [present] * 5)
        assert records[t]["clients"]["diverged"][3] == present
        if not present:
            assert_close(states[t + 1], states[t], "a round that was none", 0)
    assert (states[3].alpha[[1, 2, 4]] < 1).all() and states[3].alpha[3] == 1


@pytest.mark.costly
def test_weight_erosion_where_alice_diverges():
    federation = toy_federation(
        model=OverflowingNormed(3, (5,)), batch_norm="affine_shared", diverging=1
    )
    states, records = run_rounds(algorithm(alice=1), federation, rounds=2, scored=())
    for state, record in zip(states[1:], records, strict=True):
        assert_close(state, states[0], "everybody's", 0)
        np.testing.assert_array_equal(record["clients"]["diverged"], [0, 1, 0, 0, 0])
        assert record["clients"]["participated"].all() and (record["up"] == 1).all()
        assert not record["matrices"]["mixing"].any()
