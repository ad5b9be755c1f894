"""The state of an algorithm of which the device has some clients' rows alone."""

import itertools
from collections.abc import Callable
from typing import Any

import jax

from fedjax_pfl.utils.structs import by_field
from fedjax_pfl.utils.trees import Fetched
from fedjax_pfl.utils.typing import Rows, State, Tree


def with_partial_rows(
    state: State, rows: Rows, count: int, reader: Callable[..., Any] | None = None
) -> State:
    """The state as an algorithm gets it where clients' rows lie in host memory.

    Args:
      state: per-client leaves [count, ...], or [k, ...] of the clients `rows` alone; these become
        `trees.Fetched`. Without such leaves it is returned as it is.
      rows: int32 [k], fewer than `count`.
      count: N.
      reader: of other rows, see `trees.Fetched`; it numbers the leaves in their order.
    """
    numbers = itertools.count()

    def some(value: Tree, axes: int) -> Tree:
        if axes != 1:
            return value

        def one(leaf):
            if len(leaf) == count:
                return leaf
            return Fetched(leaf, rows, count, reader, next(numbers))

        return jax.tree.map(one, value)

    return by_field(some, state)
