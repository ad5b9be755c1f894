"""Weight Erosion against its reference, and its limits."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import (
    OverflowingNormed,
    assert_close,
    run_rounds,
    states_of,
    toy_federation,
)
from tests.algorithms.harness import Case, assert_losses
from tests.references import weight_erosion

# Of the first six cohorts of three, Alice, client 3, is in the third, the fifth and the sixth.
PATTERNS = {
    "full-map": {},
    "full-vmap": {"client_execution": "vmap"},
    "partial-map": {"rounds": 6, "participation": 0.6},
    "partial-vmap": {"rounds": 6, "participation": 0.6, "client_execution": "vmap"},
}
QUICK = ("full-vmap", "partial-map")
EQUAL = ((6,) * 5, (3,) * 5)


def algorithm(**settings):
    return pfl.make_algorithm("weight_erosion", settings)


@pytest.mark.parametrize(
    "pattern", [pytest.param(p, marks=() if p in QUICK else pytest.mark.slow) for p in PATTERNS]
)
def test_reference(pattern):
    case = Case(**PATTERNS[pattern])
    penalties = {"distance_penalty": 0.2, "size_penalty": 0.5}
    wanted = weight_erosion.run(
        case.initial(),
        case.clients(),
        case.rounds,
        **case.common(),
        alice=3,
        batch_size=4,
        **penalties,
    )
    states, records = case.run_rounds(algorithm(alice=3, **penalties))
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_close(state.server["params"], models["alice"], "alice")
        np.testing.assert_allclose(state.alpha, models["alpha"], 1e-9, 1e-9)
        np.testing.assert_allclose(record["matrices"]["mixing"][0], models["weights"], 1e-9, 1e-9)
        np.testing.assert_allclose(record["clients"]["distance"], models["distances"], 1e-9, 1e-9)
        shown = np.nan_to_num(record["clients"]["weight"])  # NaN for those who are absent
        np.testing.assert_allclose(shown, models["weights"], 1e-9, 1e-9)
        assert_losses(record, case, "personalized", [models["alice"]] * 5, alice=3)
    assert 0 < states[-1].alpha.min() < 1 or (states[-1].alpha == 0).any()


@pytest.mark.slow
def test_a_large_penalty_is_local_training():
    states = states_of(algorithm(alice=3, distance_penalty=1e6), toy_federation())
    wanted = states_of(pfl.make_algorithm("local"), toy_federation())
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, jax.tree.map(lambda x: x[3], other.models), "alice")
    np.testing.assert_array_equal(states[-1].alpha, [0, 0, 0, 1, 0])


@pytest.mark.thorough
def test_alice_without_a_step_erodes_nothing():
    states = states_of(algorithm(alice=2, distance_penalty=0.2), toy_federation(drop_last=True))
    np.testing.assert_array_equal(states[-1].alpha, np.ones(5))


@pytest.mark.thorough
def test_a_round_without_alice_trains_nobody():
    federation = toy_federation(stragglers={0: 1}, diverging=3)
    states, records = run_rounds(algorithm(distance_penalty=0.2), federation, rounds=3, scored=())
    for t, present in enumerate((False, False, True)):
        np.testing.assert_array_equal(records[t]["up"][:, 0], [present] * 5)
        assert records[t]["clients"]["diverged"][3] == present
        if not present:
            assert_close(states[t + 1], states[t], "a round that was none", 0)
    assert (states[3].alpha[[1, 2, 4]] < 1).all() and states[3].alpha[3] == 1


@pytest.mark.thorough
def test_where_alice_diverges_nobodys_update_is_used():
    federation = toy_federation(
        model=OverflowingNormed(3, (5,)), batch_norm="affine_shared", diverging=1
    )
    states, records = run_rounds(algorithm(alice=1), federation, rounds=2, scored=())
    for state, record in zip(states[1:], records, strict=True):
        assert_close(state, states[0], "everybody's", 0)
        np.testing.assert_array_equal(record["clients"]["diverged"], [0, 1, 0, 0, 0])
        assert record["clients"]["participated"].all() and (record["up"] == 1).all()
        assert not record["matrices"]["mixing"].any()


def test_a_remark_says_what_the_default_penalty_is_for():
    (told,) = algorithm().remarks(toy_federation())
    assert told.startswith("its default distance_penalty of 0.006 is WAFFLE's for MNIST and 100 ro")
    assert algorithm(distance_penalty=0.036).remarks(toy_federation()) == []
