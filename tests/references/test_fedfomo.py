"""FedFomo's reference: weights, downloads, affinities, local training as its limit, by hand."""

import numpy as np
import pytest

from tests.references import fedfomo, network


@pytest.fixture
def validating(setting):
    """Clients whose validation samples are some that the next one trains on, who so can help."""
    clients = [
        {**client, "validation": other["samples"][:3]}
        for client, other in zip(
            setting["clients"], [*setting["clients"][1:], setting["clients"][0]], strict=True
        )
    ]
    return {**setting, "clients": clients}


# ------------------------------------------------------------------ weights, picks, affinities


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
    start = validating["initial"]
    near = network.scale(1.0 + 1e-9, start)
    far = network.scale(0.9, start)
    client, x, y = validating["clients"][0], validating["x"], validating["y"]
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
    with pytest.raises(ValueError, match="Unknown rule"):
        fedfomo.raised([0.1], [0], np.ones(1), "softmax")
