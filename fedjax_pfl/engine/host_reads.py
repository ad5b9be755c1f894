"""Rows that lie in host memory, read by a program while it runs.

A program asks for rows that it computes, such as one block of all clients after the other, and the
host answers from the `HostStore` of that simulation. Its number is an operand, so that one program
serves all simulations of its kind. While a program that reads runs, nothing writes to its store.
"""

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh

from fedjax_pfl.engine.host_store import HostStore
from fedjax_pfl.execution.mesh import place
from fedjax_pfl.utils.typing import Rows

STORES: "weakref.WeakValueDictionary[int, HostStore]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)
CALLBACK = "pure_callback"


class Address(NamedTuple):
    """Where rows are read: the number of a store, and of a run in it; int32 [R], or [] of one."""

    store: Any
    run: Any


def address(store: HostStore | None, runs: int) -> Address:
    """The addresses [R] of runs; of no store, to trace programs with."""
    number = 0
    if store is not None:
        known = [at for at, one in STORES.items() if one is store]
        number = known[0] if known else next(_numbers)
        STORES[number] = store
    return Address(np.full(runs, number, np.int32), np.arange(runs, dtype=np.int32))


@dataclass(frozen=True)
class Reader:
    """Reads rows of one run while a program runs.

    Attributes:
      at: of the run, traced.
      mesh: of the devices that share what is read; of several the first one reads, for all.
    """

    at: Address
    mesh: Mesh

    def __call__(self, leaves: tuple[int, ...], shapes: Sequence[Any], rows: Rows) -> list:
        """Rows [K] of the leaves with these numbers, [K, ...] each, of those shapes and types."""
        given = place((*self.at, rows), self.mesh)  # otherwise XLA warns of what it has to move
        found = jax.pure_callback(
            partial(_read, leaves), list(shapes), *given, vmap_method="broadcast_all"
        )
        return place(found, self.mesh)


def _read(leaves: tuple[int, ...], number: Any, run: Any, rows: Any) -> list[np.ndarray]:
    number, run, rows = map(np.asarray, (number, run, rows))
    store = STORES[int(number.flat[0])]
    found = store.some(run.reshape(-1), rows.reshape(run.size, -1), leaves)
    return [leaf.reshape(*rows.shape, *leaf.shape[2:]) for leaf in found]


def reads(jaxpr: core.Jaxpr) -> bool:
    """Whether a program reads rows while it runs."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == CALLBACK:
            return True
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if isinstance(inner, core.Jaxpr) and reads(inner):
                return True
    return False
