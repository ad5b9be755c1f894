"""CCVR against its reference: covariances, virtual features, calibration; rare classes, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.ccvr import CCVR, from_gaussian
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.training import ClassSums, Schedule
from fedjax_pfl.utils import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_steps,
    over,
    sampled_federation,
)
from tests.references import ccvr

CLASSES, WIDTH, SIZE = 3, 5, 4
VARIANTS = {
    "last": {"per_class": 7},
    "every": {"per_class": 5, "epochs": 3, "every": True},
}


def algorithm(**settings):
    return pfl.make_algorithm("ccvr", settings)


def draws_of(case, per_class, epochs):
    """Per round, standard normal numbers and orders of the epochs, as the library draws them."""
    drawn, orders, count = [], [], CLASSES * per_class
    for t in range(case.rounds):
        virtual = keys.of_round(case.key, "virtual", t)
        drawn.append(np.asarray(jax.random.normal(virtual, (CLASSES, per_class, WIDTH))))
        key = keys.of_round(case.key, "calibration", t)
        order = Schedule().order
        orders.append([np.asarray(order(key, e, count, count)) for e in range(epochs)])
    return {"drawn": drawn, "orders": orders, "size": SIZE}


@over(PATTERNS, [("partial-map", "last"), ("full-vmap", "every")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    draws = draws_of(case, settings["per_class"], settings.get("epochs", 1))
    every = settings.get("every", False)
    clients, common = case.clients(), case.common()
    wanted = ccvr.run(case.initial(), clients, 3, **common, **draws, every=every)
    states, records = case.run_rounds(algorithm(**settings))
    held = np.array([len(np.unique(case.y[own["samples"]])) for own in clients])
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_close(state.head, models["personalized"]["head"], f"head after round {t}")
        for name in ("global", "personalized"):
            assert_losses(record, case, name, [models[name]] * case.num_clients)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        due = int(every or t == 2)
        present = np.isin(np.arange(5), case.cohorts[t])[:, None]
        np.testing.assert_array_equal(record["down"], np.repeat(present + due, 2, axis=1))
        np.testing.assert_array_equal(record["up"], np.repeat(present, 2, axis=1))
        np.testing.assert_array_equal(record["clients"]["numbers_up"], 20 * held * due)
        np.testing.assert_array_equal(record["clients"]["forward_samples"], case.sizes * due)


@pytest.mark.thorough
def test_without_epochs_it_is_fedavg():
    federation = sampled_federation()
    ours = states_of(algorithm(epochs=0, every=True), federation)[-1]
    plain = states_of(pfl.make_algorithm("fedavg"), federation)[-1]
    assert_close(ours.server, plain.server, "server")
    assert_close(ours.head, plain.server["params"]["head"], "head")


def test_virtual_features_have_the_moments_of_the_samples():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(9, 3)) @ rng.normal(size=(3, 3)) + 2
    drawn = rng.normal(size=(20000, 3))
    drawn = (drawn - drawn.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(drawn.T))).T
    with jax.enable_x64(True):
        made = from_gaussian(
            jnp.asarray(drawn), jnp.asarray(z.mean(axis=0)), 9, jnp.asarray(z.T @ z)
        )
    np.testing.assert_allclose(np.mean(made, axis=0), z.mean(axis=0), 1e-9)
    np.testing.assert_allclose(np.cov(np.asarray(made).T), np.cov(z.T), 1e-9)


@pytest.mark.thorough
def test_who_is_late_sends_no_features():
    federation = toy_federation(stragglers={3: 1}, model=TanhNetwork(), validation_size=0)
    ours = pfl.make_algorithm("ccvr", {"every": True, "per_class": 2})
    _, (record,) = run_rounds(ours, federation, 1, scored=())
    asked = np.array([1, 1, 1, 0, 1])
    for name in ("numbers_up", "forward_samples"):
        np.testing.assert_array_equal(record["clients"][name] > 0, asked)
    np.testing.assert_array_equal(record["down"][:, 0], 2 * asked)


def test_features_of_equal_samples_have_no_spread():
    z = np.array([[1.0, 2.0, 4.0]])
    made = from_gaussian(jnp.ones((2, 3)), jnp.asarray(z[0]), 3, jnp.asarray(3 * z.T @ z))
    np.testing.assert_allclose(made, np.repeat(z, 2, axis=0), 1e-3)


@pytest.mark.parametrize(
    ("counts", "drawn"), [([5, 1, 0], [True, False, False]), ([2, 0, 3], [1, 0, 1])]
)
def test_classes_of_fewer_than_two_samples_have_none(counts, drawn):
    sums = ClassSums(jnp.ones((3, 2)), jnp.asarray(counts), jnp.zeros((3, 2, 2)))
    features, labels, valid = CCVR(per_class=2).virtual(jax.random.key(0), sums)
    assert features.shape == (6, 2) and np.isfinite(features).all()
    np.testing.assert_array_equal(labels, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(valid, np.repeat(np.array(drawn, bool), 2))


@pytest.mark.thorough
def test_missing_classes_leave_the_others_batches_whole():
    """Three of nine samples are not drawn: the other six are a minibatch of 4 and one of 2."""
    case = Case(rounds=1)
    ctx = pfl.Context(case.federation, case.key, jnp.int32(0), jnp.int32(1), None)
    model = ctx.initial_model()
    rows = np.random.default_rng(1).normal(size=(9, WIDTH))
    labels, valid = np.repeat(np.arange(3), 3), np.repeat([True, False, True], 3)
    samples = pfl.training.Batch(jnp.asarray(rows), jnp.asarray(labels), jnp.asarray(valid))
    found = CCVR(per_class=3).trained(ctx, model, samples)
    order = np.asarray(Schedule().order(keys.of_round(case.key, "calibration", 0), 0, 6, 9))[:6]
    plain = [(np.zeros(WIDTH), np.eye(WIDTH)), None, (np.zeros(WIDTH), np.eye(WIDTH))]
    drawn = [rows[:3], None, rows[6:]]
    wanted = ccvr.calibrated(case.initial(), plain, drawn, [order], 0.3, SIZE)
    assert_close(found, wanted["head"], "head")


def test_the_head_follows_from_the_sums_that_were_sent():
    """Clients that send nothing of their own leave it as it is."""
    federation = toy_federation(validation_size=0, withheld=tuple(range(5)))
    before, after = states_of(pfl.make_algorithm("ccvr"), federation, 1)
    assert_close(after.head, before.head, "head", 1e-12)
