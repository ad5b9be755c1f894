"""Memory that arrays take on devices of a platform."""

import numpy as np
import pytest

from fedjax_pfl.execution import tiles


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((8, 128), np.float32, 4 * 8 * 128),
        ((5, 5), np.float32, 4 * 8 * 128),
        ((130, 8), np.float32, 4 * 8 * 256),  # the other way round, not 136 x 128
        ((1, 130, 8), np.float32, 4 * 8 * 256),
        ((2000, 24, 20), np.float32, 4 * 2048 * 24 * 20),
        ((20, 120, 8), np.float32, 4 * 20 * 128 * 8),  # the lanes are not the last axis
        ((20, 10, 24, 24, 32), np.float32, 4 * 20 * 10 * 24 * 24 * 128),
        ((16, 128), np.float16, 2 * 16 * 128),
        ((8, 128), np.float16, 2 * 16 * 128),
        ((20, 256), np.uint8, 32 * 256),
        ((5, 3, 128), np.float64, 8 * 3 * 8 * 128),
        ((3,), np.float32, 4 * 128),
        ((), np.float32, 4 * 128),
        ((0, 5), np.float32, 0),
    ],
)
def test_a_tpu_keeps_tiles(shape, dtype, size):
    assert tiles.nbytes(shape, dtype, "tpu") == size
    plain = np.prod(shape) * np.dtype(dtype).itemsize
    assert tiles.nbytes(shape, dtype, "gpu") == tiles.nbytes(shape, dtype) == plain


def test_rows_fill_their_tiles_where_that_is_cheap():
    assert [tiles.row_length(n, "tpu") for n in (2, 63, 64, 128, 784)] == [2, 63, 128, 128, 896]
    assert tiles.row_length(784, "cpu") == tiles.row_length(784, "gpu") == 784
