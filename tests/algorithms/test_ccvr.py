"""CCVR against its reference, rare classes, late clients, and what is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.ccvr import CCVR, from_gaussian
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.training import ClassSums, Schedule
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case
from tests.references import ccvr

CLASSES, WIDTH, SIZE = 3, 5, 4


def draws_of(one):
    """Per round, standard normal numbers and orders of the epochs, as the library draws them."""
    case, drawn, orders = one.case, [], []
    per_class, epochs = one.settings["per_class"], one.settings["epochs"]
    order, count = Schedule().order, CLASSES * per_class
    for t in range(case.rounds):
        virtual = keys.of_round(case.key, "virtual", t)
        drawn.append(np.asarray(jax.random.normal(virtual, (CLASSES, per_class, WIDTH))))
        key = keys.of_round(case.key, "calibration", t)
        of_epochs = [jax.random.fold_in(key, e) for e in range(epochs)]
        orders.append([np.asarray(order(own, count, count)) for own in of_epochs])
    every = one.settings.get("every", False)
    return {"drawn": drawn, "orders": orders, "size": SIZE, "every": every}


def check_traffic(now):
    """All clients receive the model and send sums of features where the head is calibrated."""
    case = now.case
    due = int(now.settings.get("every", False) or now.t == case.rounds - 1)
    held = np.array([len(np.unique(case.y[own["samples"]])) for own in case.clients()])
    now.assert_copies(now.present, now.present + due)
    np.testing.assert_array_equal(now.clients["numbers_up"], 20 * held * due)
    np.testing.assert_array_equal(now.clients["forward_samples"], case.sizes * due)


test_reference, test_contract = comparison(
    "ccvr",
    ccvr.run,
    settings={"per_class": 5, "epochs": 2},
    variants={"last": {}, "every": {"every": True}},
    ours=("per_class", "epochs"),
    given=draws_of,
    states={"server": "global", "head": "personalized.head"},
    scores={"global": "global", "personalized": "personalized"},
    copies=None,
    check=check_traffic,
)


def test_from_gaussian_of_equal_samples():
    z = np.array([[1.0, 2.0, 4.0]])
    made = jax.jit(from_gaussian)(jnp.ones((2, 3)), z[0], 3, 3 * z.T @ z)
    np.testing.assert_allclose(made, np.repeat(z, 2, axis=0), 1e-3)


def test_no_virtual_features_of_classes_with_fewer_than_two_samples():
    sums = ClassSums(jnp.ones((3, 2)), jnp.array([1, 2, 0]), jnp.zeros((3, 2, 2)))
    features, labels, valid = jax.jit(CCVR(per_class=2).virtual)(jax.random.key(0), sums)
    assert features.shape == (6, 2) and np.isfinite(features).all()
    np.testing.assert_array_equal(labels, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(valid, [0, 0, 1, 1, 0, 0])


@pytest.mark.costly
def test_minibatches_of_virtual_features_without_missing_classes():
    """Three of nine samples are not drawn: the other six are a minibatch of 4 and one of 2."""
    case = Case(rounds=1)
    ctx = pfl.Context(case.federation, case.key, jnp.int32(0), jnp.int32(1), None)
    model = ctx.initial_model()
    rows = np.random.default_rng(1).normal(size=(9, WIDTH))
    labels, valid = np.repeat(np.arange(3), 3), np.repeat([True, False, True], 3)
    samples = pfl.training.Batch(jnp.asarray(rows), jnp.asarray(labels), jnp.asarray(valid))
    found = CCVR(per_class=3, epochs=1).trained(ctx, model, samples)
    key = jax.random.fold_in(keys.of_round(case.key, "calibration", 0), 0)
    order = np.asarray(Schedule().order(key, 6, 9))[:6]
    plain = [(np.zeros(WIDTH), np.eye(WIDTH)), None, (np.zeros(WIDTH), np.eye(WIDTH))]
    drawn = [rows[:3], None, rows[6:]]
    wanted = ccvr.calibrated(case.initial(), plain, drawn, [order], 0.3, SIZE)
    assert_close(found, wanted["head"], "head")


@pytest.mark.costly
def test_the_head_follows_from_the_sums_that_were_sent():
    """Clients that send nothing of their own leave it as it is."""
    federation = toy_federation(validation_size=0, withheld=tuple(range(5)))
    before, after = states_of(pfl.make_algorithm("ccvr", {"per_class": 2}), federation, 1)
    assert_close(after.head, before.head, "head", 1e-12)
