"""WAFFLE for one Alice and for everyone: reference, shared checks, limits and invariants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.waffle import joint_record
from fedjax_pfl.core.context import Record
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.harness import Case, assert_losses, stack
from tests.references import waffle

# Of the first six cohorts of three, client 3 is in the third, the fifth and the sixth.
PATTERNS = {
    "full-map": {},
    "full-vmap": {"client_execution": "vmap", "scored": False},
    "partial-map": {"rounds": 6, "participation": 0.6},
    "partial-vmap": {"rounds": 6, "participation": 0.6, "client_execution": "vmap"},
}
QUICK = (
    ("full-map", "functions"),
    ("full-vmap", "rebased"),
    ("partial-map", "literal"),
    ("partial-map", "rebased"),
)
ROUNDS = 3
RUN = ("server", "control", "controls", "previous", "before")


def row(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def matches(state, models):
    """One Alice's state is the reference's."""
    assert_close(state["server"]["params"], models["alice"], "alice")
    assert_close(state["control"], models["control"], "control")
    assert_close(state["controls"], stack(models["controls"])["params"], "controls")
    np.testing.assert_allclose(state["previous"], models["raw"], 1e-9, 1e-9)


def linear(number, total):
    return 1 - number / total


def square(number, total):
    return (number / total) ** 2


VARIANTS = {
    "rebased": {"control_update": "rebased", "delta_omega": 1.7},
    "literal": {"control_update": "literal"},
    "functions": {
        "omega": square,
        "psi": linear,
        "initial_history": "none",
        "distance": "gradient",
    },
}


@pytest.mark.parametrize(
    ("pattern", "variant"),
    [
        pytest.param(p, v, marks=() if (p, v) in QUICK else pytest.mark.slow)
        for p in PATTERNS
        for v in VARIANTS
    ],
)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    given = {{"control_update": "control_rule"}.get(k, k): v for k, v in settings.items()}
    wanted = waffle.run(
        case.initial(),
        case.clients(),
        case.rounds,
        **case.common(),
        alice=3,
        server_rate=0.7,
        **given,
    )
    algorithm = pfl.make_algorithm("waffle", {"alice": 3, "server_rate": 0.7, **settings})
    states, records = case.run_rounds(algorithm)
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        matches(vars(state), models)
        np.testing.assert_allclose(record["matrices"]["mixing"][0], models["weights"], 1e-9, 1e-9)
        assert_losses(record, case, "personalized", [models["alice"]] * 5, alice=3)


@pytest.mark.parametrize(
    "pattern",
    [pytest.param(p, marks=() if p == "partial-map" else pytest.mark.slow) for p in PATTERNS],
)
def test_everyone_against_the_reference(pattern):
    case = Case(**PATTERNS[pattern] | {"rounds": ROUNDS})
    states, records = case.run_rounds(pfl.make_algorithm("waffle", {"everyone": "true"}))
    for alice in range(5):
        wanted = waffle.run(case.initial(), case.clients(), ROUNDS, **case.common(), alice=alice)
        for state, record, models in zip(states[1:], records, wanted, strict=True):
            matches(row(vars(state), alice), models)
            still = not models["weights"].any()
            weights = np.eye(5)[alice] if still else models["weights"]
            np.testing.assert_allclose(record["matrices"]["mixing"][alice], weights, 1e-9, 1e-9)
            if case.scored:
                loss = case.test_losses([models["alice"]] * 5)[alice]
                scores = record["scores"]["personalized/test/loss"]
                np.testing.assert_allclose(scores[alice], loss, 1e-9)
    for record, cohort in zip(records, case.cohorts, strict=True):
        copies = 2 * len(cohort) * np.isin(np.arange(5), cohort)  # 2 for each Alice that is there
        np.testing.assert_array_equal(record["up"], np.repeat(copies[:, None], 2, axis=1))
        np.testing.assert_array_equal(record["down"], record["up"])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"participation": 0.6}, marks=pytest.mark.slow),
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"stragglers": {1: 1}, "diverging": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_everyone_is_every_single_run_to_the_bit(options):
    federation = toy_federation(**options)
    together, records = run_rounds(pfl.make_algorithm("waffle", {"everyone": True}), federation)
    up = 0
    for alice in range(5):
        alone, seen = run_rounds(pfl.make_algorithm("waffle", {"alice": alice}), federation)
        for one, every in zip(alone, together, strict=True):
            for name in RUN:
                mine = row(getattr(every, name), alice)
                assert_close(mine, getattr(one, name), f"{name} of client {alice}", 0)
        for one, every in zip(seen, records, strict=True):
            for name, scores in one["scores"].items():
                np.testing.assert_array_equal(scores[alice], every["scores"][name][alice])
            assert np.isnan(scores[np.arange(5) != alice]).all()
        up = up + np.array([record["up"] for record in seen])
    np.testing.assert_array_equal([record["up"] for record in records], up)


@pytest.mark.parametrize(
    "check",
    [pytest.param(c, marks=() if "perm" in c else pytest.mark.slow) for c in CHECKS],
)
def test_everyone_passes_the_shared_suite(check):
    CHECKS[check](pfl.make_algorithm("waffle", {"everyone": True}))


@pytest.mark.thorough
def test_a_round_without_alice_trains_nobody():
    # Client 3 overflows whenever it trains; Alice, client 0, is a straggler.
    federation = toy_federation(stragglers={0: 2}, diverging=3)
    states, records = run_rounds(pfl.make_algorithm("waffle"), federation, rounds=8, scored=())
    here = [bool(record["clients"]["participated"][0]) for record in records]
    assert here == [False, False, False, True] * 2
    for before, state, record, present in zip(states, states[1:], records, here, strict=False):
        np.testing.assert_array_equal(record["clients"]["diverged"], [0, 0, 0, present, 0])
        np.testing.assert_array_equal(record["up"][:, 0], [2 * present] * 5)
        if not present:
            assert_close(state, before, "a round that was none", 0)


def test_the_runs_of_two_alices_are_one_record():
    """Arrays [Alices, clients]; neither run's divergence, steps or traffic is lost."""
    runs = Record(
        clients={
            "diverged": jnp.array([[False, True], [False, False]]),
            "local_steps": jnp.array([[2, 3], [0, 5]]),
            "train_loss": jnp.array([[0.1, 0.2], [0.3, 0.4]]),
        },
        scalars={},
        up=jnp.array([[[2], [2]], [[0], [2]]]),
        down=jnp.array([[[2], [0]], [[2], [0]]]),
        matrices={"mixing": jnp.array([[[0.0, 0.0]], [[0.25, 0.75]]])},
    )
    record = joint_record(runs)
    wanted = {"diverged": [False, True], "local_steps": [2, 8], "train_loss": [0.1, 0.4]}
    for name, values in wanted.items():
        np.testing.assert_array_equal(record.clients[name], values)
    np.testing.assert_array_equal(record.up, [[2], [4]])
    np.testing.assert_array_equal(record.down, [[4], [0]])
    np.testing.assert_array_equal(record.matrices["mixing"], [[1, 0], [0.25, 0.75]])


@pytest.mark.thorough
def test_all_weight_on_alice_at_the_end_of_a_run():
    # In a run of 40 rounds the cut 0.95 R falls on the 38th; two more smooth the history out.
    case = Case()
    alice = pfl.make_algorithm("waffle", {"alice": 3})
    states, records = run_rounds(alice, case.federation, 40, scored=())
    weights = np.array([record["matrices"]["mixing"][0] for record in records])
    np.testing.assert_allclose(weights.sum(1), 1)
    assert (weights >= 0).all() and (weights[:, 3] >= weights.max(1) - 1e-12).all()
    np.testing.assert_array_equal(weights[39], [0, 0, 0, 1, 0])
    assert_close(
        states[40].control,
        row(states[40].controls, 3),
        "with one weight left, c is Alice's own: corrections cancel",
    )
