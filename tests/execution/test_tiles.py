"""Lengths of rows in a TPU's memory."""

from fedjax_pfl.execution import tiles


def test_rows_fill_their_tiles_where_that_is_cheap():
    assert [tiles.row_length(n, "tpu") for n in (2, 63, 64, 128, 784)] == [2, 63, 128, 128, 896]
    assert tiles.row_length(784, "cpu") == tiles.row_length(784, "gpu") == 784
