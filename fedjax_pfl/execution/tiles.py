"""Sizes of arrays in device memory, including the padding of TPU tiles."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

LANES = 128  # of a TPU's tile; it has 8 rows of 32 bits, 16 of 16 bits, 32 of 8 bits


def nbytes(shape: Sequence[int], dtype: Any, platform: str = "cpu") -> int:
    """Return the bytes of an array on a device.

    A TPU tiles two axes of an array, and pads both. Its compiler chooses which; this takes those
    with the least padding.
    """
    size = np.dtype(dtype).itemsize
    whole = math.prod(map(int, shape)) * size
    if platform != "tpu" or not whole:
        return whole
    across = [_up(n, LANES) / n for n in shape]
    down = [_up(n, 32 // min(size, 4)) / n for n in shape]
    both = [a * d for i, a in enumerate(across) for j, d in enumerate(down) if i != j]
    return round(whole * min(both or across or [LANES]))


def row_length(numbers: int, platform: str) -> int:
    """Return the length to which rows are padded for fast access to single rows.

    A TPU reads rows along the axis of the lanes. Unless the rows fill the lanes, an argument has
    the other layout, and each call of a program copies it. Short rows are not padded: they would
    take more than twice the memory.
    """
    filled = _up(numbers, LANES)
    return filled if platform == "tpu" and filled <= 2 * numbers else numbers


def _up(count: int, tile: int) -> int:
    return -(-count // tile) * tile
