"""cwFedAVG and WDR against the reference that makes the class models."""

import jax
import numpy as np
import pytest

from fedjax_pfl.algorithms.cwfedavg import class_weights
from fedjax_pfl.federation.regularizers import estimated_class_shares, weight_distribution
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case, assert_losses, assert_models
from tests.references import cwfedavg


def check_shares(now):
    by_labels = now.settings.get("shares") == "labels"
    if by_labels:
        assert now.state.shares is None
        earlier = [i for cohort in now.case.cohorts[: now.t] for i in cohort]
        sent = [3 if i in set(now.cohort) - set(earlier) else 0 for i in range(5)]  # once
        np.testing.assert_array_equal(now.clients["numbers_up"], sent)
    else:  # of the last uploads: a mixed head has others
        assert "numbers_up" not in now.clients
        np.testing.assert_allclose(now.state.shares, now.wanted["shares"], 1e-9)
    trained = now.wanted["trained"]
    apart = [  # of the classifier's norms from the true shares, whatever P is made of
        np.linalg.norm(cwfedavg.norm_shares(model) - cwfedavg.label_shares(now.case.y[own], 3))
        for model, own in ((m, now.case.samples(i)) for i, m in trained.items())
    ]
    np.testing.assert_allclose(now.clients["class_share_error"][list(trained)], apart, 1e-9)
    assert min(apart) > 1e-3
    if now.settings.get("score_class_models"):
        check_class_models(now)
    else:
        assert now.state.classes is None


def check_class_models(now):
    """A class of which nobody has a share keeps its last model."""
    for c in range(3):
        made = [models["class_models"][c] for models in now.compared.wanted[: now.t + 1]]
        last = [now.case.initial(), *(model for model in made if model is not None)][-1]
        kept = jax.tree.map(lambda leaf, c=c: leaf[c : c + 1], dict(now.state.classes))
        assert_models(kept, [last], f"model of class {c}")
        assert_losses(now.record, now.case, f"class_{c}", [last] * 5)


test_reference, test_contract = comparison(
    "cwfedavg",
    cwfedavg.run,
    variants={
        "wdr": {},
        "labels": {"shares": "labels", "wdr_weight": 0.0},
        "class-models": {"shares": "labels", "wdr_weight": 0.0, "score_class_models": True},
    },
    ours=("score_class_models",),
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    matrices={"mixing": "weights"},
    check=check_shares,
)


def test_class_weights_of_a_class_that_nobody_sends():
    weights, _, parts = class_weights(
        np.array([[0.5, 0.5, 0.0], [0, 0, 1.0]]), np.array([[1.0, 0, 0]]), np.array([4])
    )
    np.testing.assert_array_equal(weights, [[1], [0]])  # a row of zeros: keeps its model
    np.testing.assert_array_equal(parts, [[1], [0], [0]])


@pytest.mark.costly
def test_weight_distribution_and_its_slope_at_zero_distance():
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
