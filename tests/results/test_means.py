"""Means over clients against plain loops: with missing and infinite scores, weights and counts."""

import math

import numpy as np

from fedjax_pfl.results.means import mean_over_clients

VALUES = np.array([[0.5, np.nan, 1.0], [np.nan] * 3, [np.inf, 0.25, np.nan]])


def test_only_known_values_count():
    np.testing.assert_array_equal(mean_over_clients(VALUES), [0.75, np.nan, np.inf])
    assert mean_over_clients(VALUES.astype(np.float32)).dtype == np.float32


def test_weights_and_counts():
    sizes = np.array([3, 100, 0])
    np.testing.assert_array_equal(mean_over_clients(VALUES, sizes), [0.5, np.nan, np.inf])
    counts = mean_over_clients(VALUES[:1], np.array([3, 1, 1]), counts=True)
    assert math.isclose(counts[0], 3 / 4)  # 1.5 is two correct predictions
