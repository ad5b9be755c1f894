"""Line styles by number, one for each algorithm, the same in all pictures."""

import itertools
import zlib
from collections.abc import Sequence

import fedjax_pfl as pfl

FIRST = ("local", "fedavg", "fedavg_ft", "feddwa")  # of most comparisons: solid lines
MODELS = (
    "personalized",
    "global",
    "trained",
    "adapted",
    "last_trained",
)  # names that several algorithms have


def number(algorithm: str) -> int:
    """Return the number of its style (`plots.style`).

    Algorithms of this package all differ. A registered one has a number beyond theirs, made of
    its name, so that it changes no other.
    """
    from fedjax_pfl.results.plots import STYLES  # matplotlib, slow

    ours = [
        name
        for name, cls in pfl.core.ALGORITHMS.items()
        if cls.__module__.startswith("fedjax_pfl.")
    ]
    order = [*FIRST, *sorted(set(ours) - set(FIRST))]
    if algorithm in order:
        return order.index(algorithm)
    return len(order) + zlib.crc32(algorithm.encode()) % (STYLES - len(order))


def numbers(algorithms: Sequence[str]) -> list[int]:
    """Return the style of each line: the algorithm's for its first line, unused ones for others."""
    own = [number(name) for name in algorithms]
    free = (k for k in itertools.count() if k not in own)
    return [k if k not in own[:i] else next(free) for i, k in enumerate(own)]


def distinct_colors(styles: Sequence[int]) -> list[int]:
    """Return styles with distinct colours, for pictures without lines.

    Of those that share a colour the first keeps its own.
    """
    from fedjax_pfl.results.plots import COLOURS

    chosen: list[int] = []
    for style in styles:
        taken = {k % len(COLOURS) for k in chosen}
        others = {k % len(COLOURS) for k in styles} | taken
        free = [k for k in range(len(COLOURS)) if k not in others]
        clashes = style % len(COLOURS) in taken
        chosen.append(free[0] if clashes and free else style)
    return chosen


def of_models(models: Sequence[str]) -> list[int]:
    """Return each line's style for a model of a run, such as "global"."""
    known = [*MODELS, *sorted(set(models) - set(MODELS))]
    return [known.index(name) for name in models]
