"""Weight Erosion's reference: penalties, limits, one round by hand."""

import numpy as np

from tests.references import weight_erosion


def test_weight_erosion_size_penalty_counts_passes():
    common = {"distance_penalty": 0.1, "size_penalty": 0.5, "batch_size": 4}
    alpha, distances = np.array([1.0, 1.0, 0.1, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    third = weight_erosion.eroded(alpha, distances, 3, (8, 8, 8, 3), **common)
    np.testing.assert_allclose(third, [1.0, 0.85, 0.0, 0.8], rtol=1e-14)  # floor(8/8), floor(8/3)
    first = weight_erosion.eroded(alpha, distances, 1, (8, 8, 8, 0), **common)
    np.testing.assert_allclose(first, [1.0, 0.9, 0.0, 0.9], rtol=1e-14)
