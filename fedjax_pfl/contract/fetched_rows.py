"""The state of an algorithm of which the device has some clients' rows alone."""

import jax

from fedjax_pfl.structs import by_field
from fedjax_pfl.trees import Fetched
from fedjax_pfl.typing import Rows, State, Tree


def fetched(state: State, rows: Rows, count: int) -> State:
    """The state as an algorithm gets it where clients' rows lie in host memory.

    Args:
      state: per-client leaves [count, ...], or [k, ...] of the clients `rows` alone; these become
        `trees.Fetched`. Without such leaves it is returned as it is.
      rows: int32 [k], fewer than `count`.
      count: N.
    """

    def some(value: Tree, axes: int) -> Tree:
        if axes != 1:
            return value
        return jax.tree.map(lambda x: x if len(x) == count else Fetched(x, rows, count), value)

    return by_field(some, state)
