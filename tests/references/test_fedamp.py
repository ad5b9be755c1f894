"""The references of FedAMP and HeurFedAMP: weights, limits, a round by hand, the pull."""

import numpy as np
import pytest

from tests.references import fedamp, network
from tests.references.small import (
    COUNT,
    RATES,
    differences,
    flat,
)


def point(*numbers):
    return {"head": {"kernel": np.array([numbers]), "bias": np.zeros(1)}}


# ------------------------------------------------------------------ the weights


def test_attention_of_a_worked_example():
    models = [point(0.0, 0.0), point(1.0, 0.0), point(0.0, 2.0)]
    weights = fedamp.attention(models, sigma=2.0, alpha=0.5)
    near, far, across = (0.25 * np.exp(-d / 2) for d in (1.0, 4.0, 5.0))
    expected = [
        [1 - near - far, near, far],
        [near, 1 - near - across, across],
        [far, across, 1 - far - across],
    ]
    np.testing.assert_allclose(weights, expected, rtol=1e-14)


def test_alpha_is_bounded_by_what_keeps_weights_positive(setting):
    same = [setting["initial"]] * COUNT
    bound = fedamp.largest_alpha(2.0, COUNT)
    assert bound == 2.0 / 3.0
    weights = fedamp.attention(same, 2.0, bound)
    np.testing.assert_allclose(weights, (1 - np.eye(COUNT)) / 3, atol=1e-15)
    with pytest.raises(ValueError, match="at most sigma"):
        fedamp.attention(same, 2.0, bound * 1.01)
    with pytest.raises(ValueError, match="at most sigma"):  # FedDWA's setting for 4 clients
        fedamp.run(**setting, alpha=1.0, sigma=1.0)
    np.testing.assert_array_equal(fedamp.attention(same[:1], 2.0, 2.0), [[1.0]])


def test_cosine_attention_leaves_the_client_itself_out_of_the_softmax():
    models = [point(1.0, 0.0), point(2.0, 0.0), point(0.0, 3.0)]
    weights = fedamp.cosine_attention(models, sigma=1.5, self_weight=0.4)
    share = np.exp(1.5) / (np.exp(1.5) + 1)
    expected = [
        [0.4, 0.6 * share, 0.6 * (1 - share)],
        [0.6 * share, 0.4, 0.6 * (1 - share)],
        [0.3, 0.3, 0.4],
    ]
    np.testing.assert_allclose(weights, expected, rtol=1e-14)
    np.testing.assert_array_equal(fedamp.cosine_attention(models[:1], 1.5, 0.4), [[1.0]])
    huge = fedamp.cosine_attention(models, sigma=1e4, self_weight=0.0)
    np.testing.assert_allclose(huge, [[0, 1, 0], [1, 0, 0], [0.5, 0.5, 0]], atol=1e-12)


# ------------------------------------------------------------------ the rounds


def test_fedamp_descends_the_gradient_of_its_objective(setting):
    """One step on all of a client's samples, against central differences."""
    own = setting["clients"][2]["samples"]
    batches = [setting["batches"][0], [[], [], [own], []]]
    common = {**setting, "rounds": 2, "batches": batches}
    sigma, alpha, pull = 5.0, 1.5, 0.45
    first, second = fedamp.run(**common, sigma=sigma, alpha=alpha, pull=pull)
    target, begin = second["cloud"][2], first["personalized"][2]

    def objective(vector):
        model = network.unflat(vector, begin)
        loss, _ = network.loss_and_gradient(model, setting["x"][own], setting["y"][own])
        return loss + pull / 2 * network.squared_distance(model, target)

    taken = (flat(begin) - flat(second["personalized"][2])) / RATES[1]
    np.testing.assert_allclose(taken, differences(objective, flat(begin)), rtol=1e-6, atol=1e-9)
