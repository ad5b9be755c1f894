"""The style of an algorithm's line, the same in all pictures."""

import zlib
from collections.abc import Sequence

import fedjax_pfl as pfl
from fedjax_pfl.results.plots import STYLES

FIRST = ("local", "fedavg", "fedavg_ft", "feddwa")  # of most comparisons: solid lines


def number(algorithm: str) -> int:
    """The number of its style (`plots.style`).

    Algorithms of this package all differ. One of a user's own has a number beyond theirs, made of
    its name, so that it moves nobody else's.
    """
    ours = [
        name for name, cls in pfl.ALGORITHMS.items() if cls.__module__.startswith("fedjax_pfl.")
    ]
    order = [*FIRST, *sorted(set(ours) - set(FIRST))]
    if algorithm in order:
        return order.index(algorithm)
    return len(order) + zlib.crc32(algorithm.encode()) % (STYLES - len(order))


def numbers(algorithms: Sequence[str]) -> list[int]:
    """Of each line: the algorithm's, or its place where one algorithm has several lines."""
    if len(set(algorithms)) < len(algorithms):
        return list(range(len(algorithms)))
    return [number(name) for name in algorithms]
