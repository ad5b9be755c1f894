"""Parts of figures, on arrays."""

import numpy as np

from experiments.figures.drawing import Drawing


def test_whiskers_of_equal_seeds_have_no_length():
    """The mean of three times 0.26 is less than 0.26 by a rounding error."""
    drawn, equal = Drawing(3, 3), [np.full(3, 0.26 * k) for k in range(1, 40)]
    assert any(one.mean() < one.min() for one in equal)
    mean = drawn.points(drawn.axes[0], np.arange(len(equal)), equal, 0, "fedavg")
    np.testing.assert_allclose(mean, [one[0] for one in equal])
