"""FedProto's reference: the prototype loss, the server's means, nearest prototypes."""

import numpy as np

from tests.references import fedproto, network
from tests.references.small import CLASSES

SOME = np.array([True, False, True, True])


# ------------------------------------------------------------------ the loss


def test_distances_by_hand():
    prototypes, exists = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([True, False])
    inner, y = np.array([[1.0, 3.0], [3.0, 1.0], [9.0, 9.0], [1.0, 1.0]]), np.array([0, 0, 1, 0])
    result = {
        over: fedproto.prototype_loss(inner, y, prototypes, exists, over)[0]
        for over in fedproto.DISTANCES
    }
    # |z - P|^2 is 4, 4 and 0, d = 2; the mean of the three is (5/3, 5/3).
    np.testing.assert_allclose(result["matched"], 8 / 2 / 3, rtol=1e-15)
    np.testing.assert_allclose(result["batch"], 8 / 2 / 4, rtol=1e-15)
    np.testing.assert_allclose(result["class_means"], 2 * (2 / 3) ** 2 / 2, rtol=1e-15)


# ------------------------------------------------------------------ the server


def sent_by(*holders):
    """What clients send, of one feature: each holder is {class: (mean, count)}."""
    uploads = []
    for holder in holders:
        means, counts = np.zeros((3, 1)), np.zeros(3, int)
        for c, (mean, count) in holder.items():
            means[c], counts[c] = mean, count
        uploads.append((means, counts))
    return uploads


def test_means_over_holders():
    before, exists = np.array([[5.0], [6.0], [7.0]]), np.array([True, True, False])
    sent = sent_by({0: (1.0, 1)}, {0: (4.0, 2), 2: (3.0, 9)})
    made, there = fedproto.aggregated(sent, before, exists)
    np.testing.assert_allclose(made, [[3.0], [6.0], [3.0]], rtol=1e-15)
    np.testing.assert_array_equal(there, True)  # nobody holds class 1: the old one stays
    made, there = fedproto.aggregated(sent, before, exists, "uniform", drop_missing=True)
    np.testing.assert_allclose(made[[0, 2]], [[2.5], [3.0]], rtol=1e-15)
    np.testing.assert_array_equal(there, [True, False, True])
    np.testing.assert_array_equal(before, [[5.0], [6.0], [7.0]])
    made, there = fedproto.aggregated([], before, exists, drop_missing=True)
    assert made is before and there is exists


def test_means_of_classes():
    inner, y = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]]), np.array([2, 2, 0])
    means, counts = fedproto.class_means(inner, y, 4)
    np.testing.assert_array_equal(means, [[5, 5], [0, 0], [2, 3], [0, 0]])
    np.testing.assert_array_equal(counts, [1, 0, 2, 0])


# ------------------------------------------------------------------ scores


def test_nearest_prototypes_are_the_largest_logits_of_a_head(setting):
    model, x = setting.initial, setting.x
    inner = network.features(model, x)
    prototypes, _ = fedproto.class_means(inner, setting.y, CLASSES)
    for eligible in (np.ones(CLASSES, bool), SOME, np.eye(CLASSES, dtype=bool)[2]):
        nearest = [
            min(np.flatnonzero(eligible), key=lambda c: np.sum((z - prototypes[c]) ** 2))
            for z in inner
        ]
        result = fedproto.nearest_prototype(model, x, prototypes, eligible)
        np.testing.assert_array_equal(result, nearest)
        ranked = fedproto.with_prototype_head(model, prototypes, eligible)
        np.testing.assert_array_equal(network.predict(ranked, x), nearest)
        assert set(nearest) == set(np.flatnonzero(eligible))
        assert ranked["hidden"] is model["hidden"]
