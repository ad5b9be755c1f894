"""WAFFLE for one Alice and for everyone against its reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.waffle import joint_record
from fedjax_pfl.core.context import Record
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.alices import PATTERNS, assert_alices, row_of_alice
from tests.algorithms.comparison import QUICK_CHECKS, comparison
from tests.algorithms.harness import assert_losses, stack
from tests.references import waffle


def row(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def run(s, *, alice, everyone=False, **options):
    """The reference; for everyone, results of all Alices as lists."""
    if not everyone:
        return waffle.run(s, alice=alice, **options)
    runs = [waffle.run(s, alice=i, **options) for i in range(len(s.clients))]
    return [
        {
            "controls": [stack(models["controls"])["params"] for models in each],
            **{
                name: [models[name] for models in each]
                for name in ("alice", "control", "raw", "weights")
            },
        }
        for each in zip(*runs, strict=True)
    ]


def check(now):
    models, weights, count = now.wanted["alice"], now.wanted["weights"], now.case.num_clients
    if now.compared.algorithm.everyone:
        assert_losses(now.record, now.case, "personalized", models)
        weights = [
            row if row.any() else own for row, own in zip(weights, np.eye(count), strict=True)
        ]
        now.assert_copies(2 * len(now.cohort) * now.present)  # 2 for each Alice that is there
    else:
        assert_alices(now, copies=2)
        weights = weights[None]
    np.testing.assert_allclose(now.record["matrices"]["mixing"], weights, 1e-9, 1e-9)


test_reference, test_contract = comparison(
    "waffle",
    run,
    settings={"server_rate": 0.7, "delta_omega": 1.7},
    variants={
        "rebased": {},
        "another-alice": {"alice": 3},
        "shifted": {"shift": 1.5},
        "literal": {"control_update": "literal"},
        "gradients": {"distance": "gradient"},
        "everyone": {"everyone": True},
    },
    patterns=PATTERNS,
    renamed={"control_update": "control_rule"},
    given=lambda one: {"alice": row_of_alice(one)},
    states={"server": "alice", "control": "control", "controls": "controls", "previous": "raw"},
    steps=(),
    copies=None,
    check=check,
)


@pytest.mark.costly
@pytest.mark.parametrize("check", QUICK_CHECKS)
def test_contract_of_everyone(check):
    CHECKS[check](pfl.make_algorithm("waffle", {"everyone": True}))


@pytest.mark.costly
def test_rounds_without_alice():
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


def test_joint_record_of_two_alices():
    """Arrays [Alices, clients]; neither run's divergence, steps or traffic is lost."""
    runs = Record(
        clients={
            "participated": jnp.array([[True, True], [False, True]]),
            "diverged": jnp.array([[False, True], [False, False]]),
            "local_steps": jnp.array([[2, 3], [0, 5]]),
            "train_loss": jnp.array([[0.1, 0.2], [0.3, 0.4]]),
        },
        scalars={},
        up=jnp.array([[[2], [2]], [[0], [2]]]),
        down=jnp.array([[[2], [0]], [[2], [0]]]),
        matrices={"mixing": jnp.array([[[0.0, 0.0]], [[0.25, 0.75]]])},
    )
    record = jax.jit(joint_record)(runs)
    wanted = {
        "diverged": [False, True],
        "local_steps": [2, 8],
        "train_loss": [0.1, 0.4],
        "self_weight": [1, np.nan],
    }
    for name, values in wanted.items():
        np.testing.assert_array_equal(record.clients[name], values)
    np.testing.assert_array_equal(record.up, [[2], [4]])
    np.testing.assert_array_equal(record.down, [[4], [0]])
    np.testing.assert_array_equal(record.matrices["mixing"], [[1, 0], [0.25, 0.75]])
