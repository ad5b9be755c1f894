"""Lengths of rows in the memory of a TPU, which pads them to tiles."""

LANES = 128  # of a TPU's tile


def row_length(numbers: int, platform: str) -> int:
    """Return the length to which rows are padded for fast access to single rows.

    A TPU reads rows along the axis of the lanes. Unless the rows fill the lanes, an argument has
    the other layout, and each call of a program copies it. Short rows are not padded: they would
    take more than twice the memory.
    """
    filled = -(-numbers // LANES) * LANES
    return filled if platform == "tpu" and filled <= 2 * numbers else numbers
