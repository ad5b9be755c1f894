"""FedDWA's weights: a worked example, the exact minimizer, identical clients."""

import numpy as np
import pytest

from tests.references import feddwa, network
from tests.references.small import COUNT, assert_same, further_batches, identical

# ------------------------------------------------------------------ FedDWA: the weights


def test_weights_of_the_worked_example():
    weights = feddwa.inverse_distance_weights
    np.testing.assert_allclose(weights([1, 2, 4]), [4 / 7, 2 / 7, 1 / 7], rtol=1e-15)
    np.testing.assert_allclose(weights([1, 2, 4], 2), [2 / 3, 1 / 3, 0], rtol=1e-15)
    np.testing.assert_array_equal(weights([1, 2, 4], 5), weights([1, 2, 4], 3))
    np.testing.assert_array_equal(weights([3, 1, 1, 1], 2), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(weights([5, 10, 20]), weights([1, 2, 4]), rtol=1e-15)
    np.testing.assert_allclose(weights([0.0, 1.0, 0.0], tiny=1e-12), [0.5, 0, 0.5], atol=1e-12)


def test_exact_weights_sum_to_one_and_fit_at_least_as_well(setting):
    models = feddwa.run(setting, guidance_batches=further_batches(setting), top_k=4)[-1]
    trained = [models["trained"][i] for i in range(COUNT)]
    for i, guide in models["guidance"].items():

        def misfit(p, guide=guide):
            return network.squared_distance(guide, network.combine(p, trained))

        exact = feddwa.exact_weights(guide, trained)
        simplex = feddwa.exact_weights(guide, trained, nonnegative=True)
        np.testing.assert_allclose([exact.sum(), simplex.sum()], 1.0, rtol=1e-12)
        assert simplex.min() >= 0.0
        assert misfit(exact) <= misfit(simplex) * (1 + 1e-9)
        assert misfit(simplex) < misfit(models["weights"][i])


# ------------------------------------------------------------------ FedDWA: the rounds


@pytest.mark.parametrize("guidance", feddwa.GUIDANCE)
def test_identical_clients_get_uniform_weights(setting, guidance):
    same = identical(setting)
    walks = [[of_round[0]] * COUNT for of_round in further_batches(setting)]
    for models in feddwa.run(same, guidance_batches=walks, guidance=guidance, top_k=4):
        np.testing.assert_allclose(models["weights"], 1 / COUNT, rtol=1e-12)
        for one, other in zip(models["personalized"], models["trained"].values(), strict=True):
            assert_same(one, other)
