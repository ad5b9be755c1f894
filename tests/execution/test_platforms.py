"""Lengths of rows in a TPU's memory."""

from fedjax_pfl.execution.platforms import row_length


def test_rows_fill_their_tiles_where_that_is_cheap():
    lengths = [row_length(n, "tpu") for n in (2, 63, 64, 128, 784)]
    assert lengths == [2, 63, 128, 128, 896]
    assert row_length(784, "cpu") == row_length(784, "gpu") == 784
