"""Storage of clients' state rows in host memory or a file, readable by running programs.

A `HostStore` keeps a record of bytes for each client and run that some round has written. Of
several processes each keeps the records of its own clients. All processes draw the same cohorts,
so all know which rows are written; they call the functions of a store together.
"""

import itertools
import socket
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_pfl.engine.state_records import FileRecords, MemoryRecords
from fedjax_pfl.execution import processes
from fedjax_pfl.execution.host_rows import combined, on_hosts, own_rows
from fedjax_pfl.execution.mesh import mesh_of, place
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Rows

MEMORY = 0.5  # of the machine's memory that records may take; larger ones go to a file
BLOCK = 100  # clients of a checkpoint that are compared or written at once
PIECE = 2**26  # bytes of rows that devices have at once for a checkpoint, but at least a client's


class Leaf(NamedTuple):
    """The shape and type of one client's row of a leaf of the state."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class HostStore:
    """Rows [R, N, ...] of some leaves of the states of R runs.

    Args:
      first: the rows before the first round, [R, N, ...], or [R, 1, ...] where all are equal.
      clients: N.
      written_rows: rows that the rounds may write, of each run.
      folder: of the file that holds what does not fit into memory; the system's temporary folder
        if this process cannot use it.
      limit: bytes of records that the memory of one machine may hold.
      own: bool [N], the clients whose rows this process keeps, by default an equal share. Rows of
        others are read as zeros.

    Attributes:
      written: bool [R, N], rows written by any process; the others are still the first ones.
      number: identifies the store in compiled programs, see `Reader`.

    Raises:
      OutputError: the file can't be made, or the disk has too little space, in any process.
    """

    def __init__(
        self,
        first: Sequence[np.ndarray],
        clients: int,
        written_rows: int,
        folder: Path | None = None,
        limit: float = float("inf"),
        own: np.ndarray | None = None,
    ):
        self.first = [np.asarray(leaf) for leaf in first]
        self.clients = clients
        self.own = own_rows(clients) if own is None else own
        self.leaves = [Leaf(leaf.shape[2:], leaf.dtype) for leaf in self.first]
        self.ends = np.cumsum([leaf.nbytes for leaf in self.leaves]).tolist()
        self.written = np.zeros((len(self.first[0]) if self.first else 1, clients), bool)
        self.number = next(_numbers)
        _stores[self.number] = self
        machines = processes.exchange(socket.gethostname())
        on_this_machine = machines.count(machines[processes.index()])
        needed = len(self.written) * min(written_rows, int(self.own.sum())) * self.record
        if needed * on_this_machine <= limit:
            make: Any = MemoryRecords
        else:
            if folder is None or not folder.is_dir():
                folder = Path(tempfile.gettempdir())
            make = partial(FileRecords, folder, needed)
        self.records = processes.agreed(make)
        self._may_fail = any(processes.exchange(isinstance(self.records, FileRecords)))

    @property
    def record(self) -> int:
        """Bytes of one client in one run."""
        return self.ends[-1] if self.ends else 0

    def _parts(self, record: np.ndarray) -> list[np.ndarray]:
        """Return views of a record, one for each leaf's row."""
        starts = [0, *self.ends[:-1]]
        return [
            record[start:end].view(leaf.dtype).reshape(leaf.shape)
            for start, end, leaf in zip(starts, self.ends, self.leaves, strict=True)
        ]

    def _row(self, run: int, row: int) -> list[np.ndarray]:
        if self.written[run, row]:
            return self._parts(self.records.read(run * self.clients + row, self.record))
        return [leaf[run, row if leaf.shape[1] > 1 else 0] for leaf in self.first]

    def read(
        self,
        rows: np.ndarray,
        skip: np.ndarray | None = None,
        runs: Sequence[int] | np.ndarray | None = None,
        leaves: Sequence[int] | None = None,
    ) -> list[np.ndarray]:
        """Read rows [R, K] of each leaf, [R, K, ...].

        Args:
          skip: bool [R, K], rows that may be arbitrary.
          runs: [R] runs, by default all.
          leaves: numbers of the leaves, by default all.
        """
        runs = range(len(rows)) if runs is None else runs
        leaves = range(len(self.leaves)) if leaves is None else leaves
        new, chosen = np.empty if self.own.all() else np.zeros, [self.leaves[i] for i in leaves]
        out = [new((*rows.shape, *leaf.shape), leaf.dtype) for leaf in chosen]
        for (r, k), row in np.ndenumerate(rows) if out else ():
            if self.own[row] and (skip is None or not skip[r, k]):
                parts = self._row(int(runs[r]), int(row))
                for into, i in zip(out, leaves, strict=True):
                    into[r, k] = parts[i]
        return out

    def write(self, rows: np.ndarray, values: Sequence[Any]) -> None:
        """Write values [R, K, ...] of each leaf to the rows [R, K].

        Further values, [R, L, ...] with L > K, are ignored.

        Raises:
          OutputError: the file of any process can't be written.
        """
        values = on_hosts(values)
        if self._may_fail:
            processes.agreed(lambda: self._write(rows, values))
        else:
            self._write(rows, values)

    def _write(self, rows: np.ndarray, values: Sequence[np.ndarray]) -> None:
        if not values:
            return
        for (run, k), row in np.ndenumerate(rows):
            if self.own[row]:
                record = np.empty(self.record, np.uint8)
                for part, value in zip(self._parts(record), values, strict=True):
                    part[...] = value[run, k]
                self.records.write(run * self.clients + int(row), record)
            self.written[run, row] = True

    def write_changed(self, leaves: Sequence[np.ndarray]) -> None:
        """Write the rows of whole leaves [R, N, ...] that differ from the first ones.

        Raises:
          OutputError: the file of any process can't be written.
        """
        for start in range(0, self.clients, BLOCK):
            part = slice(start, start + BLOCK)
            here = [leaf[:, part] for leaf in leaves]
            first = [x[:, part] if x.shape[1] > 1 else x for x in self.first]
            changed = np.zeros((len(self.written), min(BLOCK, self.clients - start)), bool)
            for leaf, one in zip(here, first, strict=True):
                other = _bits(leaf) != _bits(one)  # so that a NaN is itself, and -0 is not 0
                changed |= other.any(axis=tuple(range(2, other.ndim)))
            at = np.flatnonzero(changed.any(axis=0))
            rows = np.broadcast_to(start + at, (len(self.written), len(at)))
            self.write(rows, [leaf[:, at] for leaf in here])

    def read_written(self, everywhere: bool = True) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return (written clients int32 [K], their rows of each leaf [R, K, ...]).

        Args:
          everywhere: whether processes other than the first one get the rows too.
        """
        clients = np.flatnonzero(self.written.any(axis=0)).astype(np.int32)
        runs = len(self.written)
        if self.own.all() and not processes.is_distributed():
            return clients, self.read(np.broadcast_to(clients, (runs, len(clients))))
        wanted = everywhere or processes.is_first()
        shape = (runs, len(clients) if wanted else 0)
        out = [np.empty((*shape, *leaf.shape), leaf.dtype) for leaf in self.leaves]
        width = min(BLOCK, max(PIECE // max(runs * self.record, 1), 1))
        mesh = mesh_of(len(processes.all_devices()))
        for start in range(0, len(clients) if out else 0, width):
            at = clients[np.minimum(np.arange(start, start + width), len(clients) - 1)]
            rows = combined(self.read(np.broadcast_to(at, (runs, width))), mesh)
            for leaf, part in zip(out, rows, strict=True):
                part = np.asarray(part)  # in every process, so that all stay in step
                if wanted:
                    leaf[:, start : start + width] = part[:, : len(clients) - start]
        return clients, out


def _bits(values: np.ndarray) -> np.ndarray:
    """Return the bytes [R, K, ...] of values [R, K, ...], for comparison."""
    flat = np.ascontiguousarray(values)[..., None]
    return flat.view(np.uint8)


def restored_leaves(trees: Mapping[str, Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Return all leaves [R, N, ...] of the state in a checkpoint of either kind."""
    leaves = list(trees["states"])
    if "hosted" not in trees:
        return leaves
    written, numbers, clients = trees["hosted"]
    for at, first in zip(numbers, trees["first"], strict=True):
        rows = leaves[at]
        leaf = np.broadcast_to(first, (len(first), int(clients), *first.shape[2:])).copy()
        leaf[:, written] = rows
        leaves[at] = leaf
    return leaves


@struct
class Address:
    """Reference by which a program reads rows of clients that are not on the devices.

    Attributes:
      store, run: numbers of a store and of a run in it, int32 [R], or [] inside a program.
      readable: whether the program may read there; else it can't be traced where it needs to.
    """

    store: Any
    run: Any
    readable: bool = static()


@dataclass(frozen=True)
class Reader:
    """Reads rows of one run's `HostStore` while a program runs, without concurrent writes.

    The number of the store is an operand, so that one program serves all simulations of its kind.

    Attributes:
      at: index of the run, traced.
      mesh: the devices that share what is read; the first one of several reads for all.
    """

    at: Address
    mesh: Mesh

    def __call__(self, leaves: tuple[int, ...], shapes: Sequence[Any], rows: Rows) -> list:
        """Return rows [K] of numbered leaves, [K, ...] each, of given shapes and types."""
        operands = place(
            (self.at.store, self.at.run, rows), self.mesh
        )  # else XLA warns of what it has to move
        result = jax.pure_callback(
            partial(_read, leaves), list(shapes), *operands, vmap_method="broadcast_all"
        )
        return place(result, self.mesh)


def _read(leaves: tuple[int, ...], number: Any, run: Any, rows: Any) -> list[np.ndarray]:
    number, run, rows = map(np.asarray, (number, run, rows))
    store = _stores[int(number.flat[0])]
    result = store.read(rows.reshape(run.size, -1), runs=run.reshape(-1), leaves=leaves)
    return [leaf.reshape(*rows.shape, *leaf.shape[2:]) for leaf in result]


_stores: "weakref.WeakValueDictionary[int, HostStore]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)
