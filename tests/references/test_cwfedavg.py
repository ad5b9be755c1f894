"""cwFedAVG's reference: its weights, the regularizer's gradient, the rounds."""

import numpy as np
import pytest

from tests.references import cwfedavg, network
from tests.references.small import COUNT, EVERYBODY, PARTIAL, ROUNDS, flat, stack

# ------------------------------------------------------------------ the weights


def test_cwfedavg_class_weights_are_the_counts_of_the_class():
    counts = np.array([[3, 0, 1], [2, 0, 2], [0, 0, 5]])
    sizes = counts.sum(axis=1)
    weights = cwfedavg.class_weights(sizes, counts / sizes[:, None])
    np.testing.assert_allclose(weights[:, 0], [3 / 5, 2 / 5, 0], rtol=1e-14)
    np.testing.assert_array_equal(weights[:, 1], 0.0)
    np.testing.assert_allclose(weights[:, 2], [1 / 8, 2 / 8, 5 / 8], rtol=1e-14)
    disjoint = cwfedavg.class_weights((1, 3, 2), np.eye(2)[[0, 1, 0]])
    mixing = cwfedavg.mixing_matrix(np.eye(2)[[0, 1, 0]], disjoint)
    np.testing.assert_allclose(mixing, [[1 / 3, 0, 2 / 3], [0, 1, 0], [1 / 3, 0, 2 / 3]])


def test_cwfedavg_shares():
    np.testing.assert_allclose(cwfedavg.label_shares(np.array([2, 0, 2, 2]), 4), [0.25, 0, 0.75, 0])
    np.testing.assert_array_equal(cwfedavg.label_shares(np.array([], int), 4), 0.0)
    params = network.random_parameters(np.random.default_rng(0), 2, 2, 3)
    params["head"]["kernel"] = np.array([[3.0, 0.0, 0.0], [4.0, 0.0, 5.0]])
    np.testing.assert_allclose(cwfedavg.norm_shares(params), [0.5, 0.0, 0.5], rtol=1e-15)
    params["head"]["kernel"] = np.zeros((2, 3))
    np.testing.assert_allclose(cwfedavg.norm_shares(params), 1 / 3, rtol=1e-15)
    np.testing.assert_array_equal(
        flat(cwfedavg.regularizer_gradient(params, np.full(3, 1 / 3), 10.0)), 0.0
    )


def test_cwfedavg_regularizer_is_half_of_lambda_times_the_distance(setting):
    params, target = setting.initial, np.array([0.6, 0.0, 0.1, 0.3])
    distance = np.linalg.norm(cwfedavg.norm_shares(params) - target)
    penalty = cwfedavg.regularizer(params, target, 7.0)
    np.testing.assert_allclose(penalty, 3.5 * distance, rtol=1e-9)
    reached = cwfedavg.norm_shares(params)
    assert np.isfinite(flat(cwfedavg.regularizer_gradient(params, reached, 7.0))).all()


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
@pytest.mark.parametrize(("shares", "wdr_weight"), [("labels", 0.0), ("norms", 0.0), ("norms", 5)])
def test_cwfedavg_class_models_and_fused_matrix_agree(setting, cohorts, shares, wdr_weight):
    common, options = setting.but(cohorts=cohorts), {"shares": shares, "wdr_weight": wdr_weight}
    literal, fused = (cwfedavg.run(common, **options, fused=fused) for fused in (False, True))
    for t in range(ROUNDS):
        for key in ("weights", "shares", "class_weights"):
            np.testing.assert_allclose(literal[t][key], fused[t][key], rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(
            stack(literal[t]["personalized"]), stack(fused[t]["personalized"]), rtol=1e-10
        )
        weights = literal[t]["weights"]
        assert weights.min() >= 0.0
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-13)
        absent = sorted(set(range(COUNT)) - set(cohorts[t]))
        np.testing.assert_array_equal(literal[t]["class_weights"][absent], 0.0)
        for i in range(COUNT):
            kept = np.array_equal(weights[i], np.eye(COUNT)[i])
            assert kept or not weights[i, absent].any()
