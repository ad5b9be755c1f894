"""cwFedAVG and WDR against the reference that makes the class models."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.regularizers import class_norms, weight_distribution
from fedjax_pfl.testing import assert_close
from tests.algorithms.harness import PATTERNS, QUICK, Case, assert_losses, assert_models
from tests.reference import cwfedavg

VARIANTS = {"wdr": ("norms", 10.0), "without": ("norms", 0.0), "labels": ("labels", 0.0)}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def quick(pattern, variant):
    return pattern == "partial-map" or (pattern in QUICK and variant == "wdr")


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
    states, records = case.play(pfl.make_method("cwfedavg", settings))
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_models(state.models, models["personalized"], "personalized")
        assert_losses(record, case, "personalized", models["personalized"])
        np.testing.assert_allclose(record["matrices"]["mixing"], models["weights"], 1e-9, 1e-9)


def test_a_penalty_of_zero_changes_no_training():
    case = Case()
    without = case.play(pfl.make_method("cwfedavg", {"wdr_weight": 0}))[0]
    plain = case.play(pfl.make_method("local"))[0]
    # One client alone mixes only with itself: what is left is its local training.
    alone = {"train_sizes": (6,), "test_sizes": (3,)}
    one = Case(**alone)
    ours = one.play(pfl.make_method("cwfedavg", {"wdr_weight": 0}))[0]
    theirs = one.play(pfl.make_method("local"))[0]
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
    np.testing.assert_allclose(class_norms(head), [0.25, 0.5, 0.25])
    penalty, slope = jax.value_and_grad(weight_distribution)(params, federation.plan, counts, 10.0)
    np.testing.assert_allclose(penalty, 5e-6)  # 10 / 2 times sqrt(0 + 1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    far = weight_distribution(params, federation.plan, np.array([4, 0, 0]), 10.0)
    np.testing.assert_allclose(far, 5 * np.sqrt(0.75**2 + 0.5**2 + 0.25**2))
