"""cwFedAVG and WDR against the reference that makes the class models."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.cwfedavg import class_weights
from fedjax_pfl.federation.regularizers import estimated_class_shares, weight_distribution
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.harness import PATTERNS, QUICK, Case, assert_losses, assert_models
from tests.references import cwfedavg

VARIANTS = {"wdr": ("norms", 10.0), "without": ("norms", 0.0), "labels": ("labels", 0.0)}


def quick(pattern, variant):
    return (
        pattern in QUICK if variant == "wdr" else (pattern, variant) == ("partial-map", "without")
    )


@pytest.mark.parametrize(
    ("pattern", "variant"),
    [
        pytest.param(p, v, marks=() if quick(p, v) else pytest.mark.slow)
        for p in PATTERNS
        for v in VARIANTS
    ],
)
def test_reference(pattern, variant):
    case = Case(**PATTERNS[pattern])
    shares, weight = VARIANTS[variant]
    wanted = cwfedavg.run(
        case.initial(), case.clients(), 3, **case.common(), shares=shares, wdr_weight=weight
    )
    settings = {"shares": shares, "wdr_weight": weight}
    states, records = case.run_rounds(pfl.make_algorithm("cwfedavg", settings))
    assert (states[0].shares is None) == (shares == "labels") and states[0].classes is None
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_models(state.models, models["personalized"], "personalized")
        assert_losses(record, case, "personalized", models["personalized"])
        if shares == "norms":  # of the last uploads: a mixed head has others
            np.testing.assert_allclose(state.shares, models["shares"], 1e-9)
        assert ("numbers_up" in record["clients"]) == (shares == "labels")
        np.testing.assert_allclose(record["matrices"]["mixing"], models["weights"], 1e-9, 1e-9)
        apart = [  # of the classifier's norms from the true shares, whatever P is made of
            np.linalg.norm(cwfedavg.norm_shares(model) - cwfedavg.label_shares(case.y[own], 3))
            for model, own in ((m, case.samples(i)) for i, m in models["trained"].items())
        ]
        recorded = record["clients"]["class_share_error"]
        np.testing.assert_allclose(recorded[list(models["trained"])], apart, 1e-9)
        assert min(apart) > 1e-3


def test_class_models():
    case = Case(participation=0.6)
    wanted = cwfedavg.run(case.initial(), case.clients(), 3, **case.common(), shares="labels",
                          wdr_weight=0.0)  # fmt: skip
    chosen = {"shares": "labels", "wdr_weight": 0, "score_class_models": "true"}
    states, records = case.run_rounds(pfl.make_algorithm("cwfedavg", chosen))
    last, told = [case.initial()] * 3, set()
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        sent = [3 if i in set(case.cohorts[t]) - told else 0 for i in range(5)]  # shares, once
        np.testing.assert_array_equal(record["clients"]["numbers_up"], sent)
        told |= set(case.cohorts[t])
        made = models["class_models"]
        last = [old if new is None else new for old, new in zip(last, made, strict=True)]
        assert_models(state.classes, last, "class models")
        assert_models(state.models, models["personalized"], "personalized")
        np.testing.assert_allclose(record["matrices"]["mixing"], models["weights"], 1e-9, 1e-9)
        for c, model in enumerate(last):
            assert_losses(record, case, f"class_{c}", [model] * 5)


def test_the_worked_example():
    shares = np.array([[0.5, 0.5], [0.25, 0.75]])
    weights, *_ = class_weights(shares, shares, np.array([10, 30]))
    np.testing.assert_allclose(weights, [[0.2909, 0.7091], [0.2364, 0.7636]], atol=5e-5)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 3, 6]), st.sampled_from([2, 5]), st.integers(0, 2**32 - 1))
@pytest.mark.thorough
def test_weights_are_row_stochastic_and_know_no_order_of_classes(count, classes, seed):
    with jax.enable_x64(True):
        rng = np.random.default_rng(seed)
        shares, sizes = rng.dirichlet(np.ones(classes), count), rng.integers(1, 50, count)
        weights, of_sent, parts = class_weights(shares, shares, sizes)
        for matrix in (weights, of_sent, parts):
            assert (matrix >= 0).all()
            np.testing.assert_allclose(matrix.sum(1), 1)
        order = rng.permutation(classes)
        again, *_ = class_weights(shares[:, order], shares[:, order], sizes)
        np.testing.assert_allclose(again, weights, 1e-9)
        models = np.full((count, 3), rng.normal(size=3))
        np.testing.assert_allclose(weights @ models, models)  # identical models stay
        even, *_ = class_weights(np.full_like(shares, 1 / classes), shares * 0 + 1, sizes)
        np.testing.assert_allclose(even, np.tile(sizes / sizes.sum(), (count, 1)))  # Theorem 1


def test_clients_of_one_class_each_form_blocks():
    shares = np.eye(3)[[0, 1, 0, 2]]
    weights, *_ = class_weights(shares, shares, np.array([1, 5, 3, 2]))
    wanted = [[0.25, 0, 0.75, 0], [0, 1, 0, 0], [0.25, 0, 0.75, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(weights, wanted)


def test_a_class_that_nobody_sends_drops_out():
    weights, _, parts = class_weights(
        np.array([[0.5, 0.5, 0.0], [0, 0, 1.0]]), np.array([[1.0, 0, 0]]), np.array([4])
    )
    np.testing.assert_array_equal(weights, [[1], [0]])  # a row of zeros: keeps its model
    np.testing.assert_array_equal(parts, [[1], [0], [0]])


@pytest.mark.slow
def test_a_penalty_of_zero_changes_no_training():
    case = Case()
    without = case.states_of(pfl.make_algorithm("cwfedavg", {"wdr_weight": 0}))
    plain = case.states_of(pfl.make_algorithm("local"))
    # One client alone mixes only with itself: what is left is its local training.
    alone = {"train_sizes": (6,), "test_sizes": (3,)}
    one = Case(**alone)
    ours = one.states_of(pfl.make_algorithm("cwfedavg", {"wdr_weight": 0}))
    theirs = one.states_of(pfl.make_algorithm("local"))
    assert_close(ours[-1].models, theirs[-1].models, "one client")
    moved = [
        np.abs(a - b).max()
        for a, b in zip(jax.tree.leaves(without[-1]), jax.tree.leaves(plain[-1]), strict=True)
    ]
    assert max(moved) > 1e-3


def test_penalty_and_its_slope_at_zero_distance():
    federation = Case().federation
    counts = np.array([1, 2, 1])
    head = np.array([[1.0, 2.0, 1.0]] + [[0.0] * 3] * 4)
    params = {
        "head": {"bias": np.zeros(3), "kernel": head},
        "hidden": {"bias": np.zeros(5), "kernel": np.ones((4, 5))},
    }
    estimated = estimated_class_shares(params, federation.plan, 3)
    np.testing.assert_allclose(estimated, [0.25, 0.5, 0.25])
    penalty, slope = jax.value_and_grad(weight_distribution)(params, federation.plan, counts, 10.0)
    np.testing.assert_allclose(penalty, 5e-6)  # 10 / 2 times sqrt(0 + 1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    far = weight_distribution(params, federation.plan, np.array([4, 0, 0]), 10.0)
    np.testing.assert_allclose(far, 5 * np.sqrt(0.75**2 + 0.5**2 + 0.25**2))
