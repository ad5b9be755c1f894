"""Algorithm states of which the device has the rows of only some clients."""

import itertools
from collections.abc import Callable
from typing import Any

import jax

from fedjax_pfl.utils.structs import by_field
from fedjax_pfl.utils.trees import PartialLeaf
from fedjax_pfl.utils.typing import Rows, State, Tree


def with_partial_rows(
    state: State, rows: Rows, count: int, reader: Callable[..., Any] | None = None
) -> State:
    """Wrap the leaves of a state whose other rows are in host memory.

    Args:
      state: per-client leaves are [count, ...], or [k, ...] for the clients `rows`; the latter
        become `trees.PartialLeaf`. A state without such leaves is returned unchanged.
      rows: int32 [k], fewer than `count`.
      count: N, the number of clients.
      reader: reads other rows, see `trees.PartialLeaf`; leaves are numbered in their order.
    """
    numbers = itertools.count()

    def some(value: Tree, axes: int) -> Tree:
        if axes != 1:
            return value

        def one(leaf):
            if len(leaf) == count:
                return leaf
            return PartialLeaf(leaf, rows, count, reader, next(numbers))

        return jax.tree.map(one, value)

    return by_field(some, state)
