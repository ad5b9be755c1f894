"""References in which clients weigh each other: FedAMP, FedFomo, L2C."""

import numpy as np
import pytest

from tests.references import fedamp, fedfomo, l2c, network
from tests.references.small import (
    COUNT,
    RATES,
    ROUNDS,
    differences,
    flat,
)

# ---- FedAMP and HeurFedAMP


def point(*numbers):
    return {"head": {"kernel": np.array([numbers]), "bias": np.zeros(1)}}


def test_alpha_is_bounded_by_what_keeps_weights_positive(setting):
    same = [setting.initial] * COUNT
    bound = fedamp.largest_alpha(2.0, COUNT)
    assert bound == 2.0 / 3.0
    weights = fedamp.attention(same, 2.0, bound)
    np.testing.assert_allclose(weights, (1 - np.eye(COUNT)) / 3, atol=1e-15)
    with pytest.raises(ValueError, match="at most sigma"):
        fedamp.attention(same, 2.0, bound * 1.01)
    with pytest.raises(ValueError, match="at most sigma"):  # FedDWA's setting for 4 clients
        fedamp.run(setting, alpha=1.0, sigma=1.0)
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


def test_fedamp_descends_the_gradient_of_its_objective(setting):
    """One step on all of a client's samples, against central differences."""
    own = setting.clients[2]["samples"]
    batches = [setting.batches[0], [[], [], [own], []]]
    common = setting.but(rounds=2, batches=batches)
    sigma, alpha, pull = 5.0, 1.5, 0.45
    first, second = fedamp.run(common, sigma=sigma, alpha=alpha, proximal_weight=pull)
    target, begin = second["cloud"][2], first["personalized"][2]

    def objective(vector):
        model = network.unflat(vector, begin)
        loss, _ = network.loss_and_gradient(model, setting.x[own], setting.y[own])
        return loss + pull / 2 * network.squared_distance(model, target)

    taken = (flat(begin) - flat(second["personalized"][2])) / RATES[1]
    np.testing.assert_allclose(taken, differences(objective, flat(begin)), rtol=1e-6, atol=1e-9)


# ---- FedFomo


def test_weights_of_a_worked_example():
    weights = fedfomo.first_order_weights(2.0, [1.0, 1.5, 3.0, 2.0], [2.0, 0.25, 1.0, 5.0])
    np.testing.assert_array_equal(weights, [0.5, 2.0, -1.0, 0.0])
    np.testing.assert_array_equal(fedfomo.positive_part(weights), [0.2, 0.8, 0.0, 0.0])
    np.testing.assert_array_equal(
        fedfomo.first_order_weights(2.0, [1.0, 1.0], [0.0, 4.0]), [0, 0.25]
    )
    np.testing.assert_array_equal(fedfomo.positive_part(np.array([-1.0, 0.0])), [0.0, 0.0])


# ---- L2C


def test_a_step_of_the_logits_lowers_the_validation_loss(setting):
    whole = [[[client["samples"]] for client in setting.clients]] * ROUNDS
    (after,) = l2c.run(setting.but(rounds=1), validation_batches=whole, logit_rate=1e-3)
    initial, everyone = setting.initial, np.ones(COUNT, bool)
    deltas = {i: network.subtract(initial, after["trained"][i]) for i in range(COUNT)}
    for i in range(COUNT):
        own = setting.clients[i]["samples"]
        x, y = setting.x[own], setting.y[own]
        losses = [
            network.loss_and_gradient(
                l2c.mixed(initial, l2c.softmax_over(logits, everyone), deltas), x, y
            )[0]
            for logits in (np.zeros(COUNT), after["logits"][i])
        ]
        assert losses[1] < losses[0]
