"""References in which clients weigh each other: FedAMP, FedFomo, L2C."""

import numpy as np
import pytest

from tests.references import fedamp, fedfomo, l2c, l2c_encoder, network
from tests.references.small import (
    CLASSES,
    COUNT,
    RATES,
    ROUNDS,
    differences,
    flat,
    further_batches,
    stack,
)

# ---- FedAMP and HeurFedAMP


def point(*numbers):
    return {"head": {"kernel": np.array([numbers]), "bias": np.zeros(1)}}


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


@pytest.fixture
def validating(setting):
    """Clients whose validation samples are some that the next one trains on, who so can help."""
    clients = [
        {**client, "validation": other["samples"][:3]}
        for client, other in zip(
            setting.clients, [*setting.clients[1:], setting.clients[0]], strict=True
        )
    ]
    return setting.but(clients=clients)


def test_weights_of_a_worked_example():
    weights = fedfomo.first_order_weights(2.0, [1.0, 1.5, 3.0, 2.0], [2.0, 0.25, 1.0, 5.0])
    np.testing.assert_array_equal(weights, [0.5, 2.0, -1.0, 0.0])
    np.testing.assert_array_equal(fedfomo.positive_part(weights), [0.2, 0.8, 0.0, 0.0])
    np.testing.assert_array_equal(
        fedfomo.first_order_weights(2.0, [1.0, 1.0], [0.0, 4.0]), [0, 0.25]
    )
    np.testing.assert_array_equal(fedfomo.positive_part(np.array([-1.0, 0.0])), [0.0, 0.0])


def test_models_that_differ_by_rounding_weigh_nothing(validating):
    """Public code divides by a distance of 0, or by 1e-5 in its place."""
    start = validating.initial
    near = network.scale(1.0 + 1e-9, start)
    far = network.scale(0.9, start)
    client, x, y = validating.clients[0], validating.x, validating.y
    for fallback, kept in (("trained", [1.0, 0.0]), ("start", [0.0, 0.0])):
        mixed, share, signed = fedfomo.mix(start, [near, start], client, x, y, fallback=fallback)
        assert mixed is (near if fallback == "trained" else start)
        np.testing.assert_array_equal(share, kept)
        np.testing.assert_array_equal(signed, 0.0)
    _, _, signed = fedfomo.mix(start, [near, far], client, x, y)
    assert signed[0] == 0.0 != signed[1]


def test_picks_are_greedy_random_or_tied():
    affinity, priority = [0.1, 0.5, 0.5, -0.2, 0.0], [9, 7, 5, 1, 3]

    def pick(explores, ties=(0, 1, 2, 3, 4), candidates=(1, 2, 3, 4)):
        return fedfomo.pick(affinity, candidates, len(explores), explores, priority, ties)

    assert pick([False] * 3) == [1, 2, 4]
    assert pick([False] * 3, ties=(0, 2, 1, 3, 4)) == [2, 1, 4]
    assert pick([True] * 3) == [3, 4, 2]
    assert pick([False, True, False]) == [1, 3, 2]
    assert pick([True] * 9) == [3, 4, 2, 1]  # no more than there are
    assert pick([False] * 2, candidates=()) == []


def test_affinities_rise_by_signed_shares():
    weights = np.array([2.0, -0.5, -0.5])
    affinity = fedfomo.raised([0.1, 0.0, 0.0, 0.3], [0, 3, 1], weights)
    np.testing.assert_allclose(affinity, [2.1, -0.5, 0.0, -0.2], rtol=1e-14)
    affinity = fedfomo.raised([0.0, 0.0], [0, 1], np.array([-3.0, 1.0]))
    np.testing.assert_allclose(affinity, [-1.5, 0.5])  # signs are kept, the sum's is not
    raw = fedfomo.raised([0.1, 0.0, 0.0, 0.3], [0, 3, 1], weights, "raw")
    np.testing.assert_allclose(raw, [2.1, -0.5, 0.0, -0.2])
    np.testing.assert_array_equal(fedfomo.raised([0.1, 0.2], [0, 1], np.zeros(2)), [0.1, 0.2])
    close = fedfomo.raised([0.0, 0.0], [0, 1], np.array([1.0, -1.0]))
    np.testing.assert_allclose(close, [1e9, -1e9])  # finite where the sum is 0


# ---- L2C


def test_weights_lie_on_the_simplex_of_the_active():
    logits = np.array([800.0, -3.0, 801.0, 1e5])
    weights = l2c.softmax_over(logits, np.array([True, True, True, False]))
    np.testing.assert_allclose(weights, [1 / (1 + np.e), 0, np.e / (1 + np.e), 0], rtol=1e-12)
    np.testing.assert_array_equal(l2c.softmax_over(logits, np.eye(4, dtype=bool)[1]), [0, 1, 0, 0])


def test_neighbours_to_keep():
    logits = np.array([0.5, 3.0, 0.5, 2.0, -9.0])
    for client, count, kept in (
        (4, 2, [1, 3, 4]),
        (4, 3, [0, 1, 3, 4]),
        (1, 0, [1]),
        (0, 9, range(5)),
    ):
        mask = l2c.neighbours_to_keep(logits, client, count)
        assert np.flatnonzero(mask).tolist() == list(kept)
    tied = l2c.neighbours_to_keep(np.zeros(5), 2, 2)
    assert np.flatnonzero(tied).tolist() == [0, 1, 2]


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


# ---- L2C's attention


def updates_of(seed, clients=(0, 1, 3)):
    rng = np.random.default_rng(seed)
    first = network.random_parameters(rng, 5, 6, CLASSES)
    return {
        j: l2c_encoder.update_of(first, network.random_parameters(rng, 5, 6, CLASSES))
        for j in clients
    }


def test_rows_lead_to_one_unit_each():
    kernel = np.arange(24.0).reshape(2, 3, 4)  # such as a convolution's
    rows = l2c_encoder.rows_of(kernel)
    assert rows.shape == (4, 6)
    np.testing.assert_array_equal(rows[1], kernel[..., 1].ravel())
    np.testing.assert_array_equal(l2c_encoder.rows_of(np.arange(3.0)), [[0], [1], [2]])


def test_updates_have_length_one():
    for update in updates_of(5).values():
        np.testing.assert_allclose(np.linalg.norm(flat(update)), 1.0, rtol=1e-9)
    model = network.random_parameters(np.random.default_rng(0), 5, 6, CLASSES)
    assert not flat(l2c_encoder.update_of(model, model)).any()


def test_only_a_whole_pass_sees_more_than_the_first_validation_batch(setting):
    batches = further_batches(setting)
    first = [[own[:1] for own in of_round] for of_round in batches]

    def logits(validation_batches, whole_pass=False):
        history = l2c.run(setting, validation_batches=validation_batches, whole_pass=whole_pass)
        return history[-1]["logits"]

    for result in (logits(batches), logits(first, whole_pass=True)):
        np.testing.assert_array_equal(result, logits(first))
        assert (result != logits(batches, whole_pass=True)).any()


@pytest.mark.parametrize("heuristic", [False, True])
def test_a_newcomer_is_one_more_client_in_the_mixing(setting, heuristic):
    models = fedamp.run(setting, sigma=9.0, heuristic=heuristic)[-1]["personalized"]
    if heuristic:
        weights = fedamp.cosine_attention(models, 9.0, 1 / COUNT)
    else:
        weights = fedamp.attention(models, 9.0, fedamp.largest_alpha(9.0, COUNT))
    result = fedamp.newcomer(models[3], models[:3], sigma=9.0, heuristic=heuristic)
    np.testing.assert_allclose(flat(result), weights[3] @ stack(models), rtol=1e-11, atol=1e-14)
