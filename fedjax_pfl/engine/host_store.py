"""What clients keep, in host memory or in a file: records of bytes, one for each client and run."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.utils.errors import OutputError, gigabytes

MEMORY = 0.5  # of the machine's memory that records may take; larger ones go to a file
BLOCK = 100  # clients of a checkpoint that are looked at or written at once


class Leaf(NamedTuple):
    """One client's row of a leaf of the state: its shape and type."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class _InMemory:
    """Records in arrays of their own, so that clients which never took part cost nothing."""

    def __init__(self):
        self.records: dict[int, np.ndarray] = {}

    def read(self, index: int, size: int) -> np.ndarray:
        return self.records[index]

    def write(self, index: int, record: np.ndarray) -> None:
        self.records[index] = record


class _InFile:
    """Records in a file without a name, which is gone with the process, however that ends.

    It is read and written, not mapped: a disk that is full is then an error like any other.
    """

    def __init__(self, folder: Path, needed: int):
        self.folder = folder
        try:
            free = shutil.disk_usage(folder).free
            self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        except OSError as error:
            raise self._error(error) from error
        if free < needed:
            self.file.close()
            raise OutputError(
                f"What clients keep may take {gigabytes(needed)} in a file in {folder}, where "
                f"{gigabytes(free)} are free."
            )

    def _error(self, error: OSError) -> OutputError:
        why = error.strerror or type(error).__name__
        return OutputError(f"What clients keep can't be written to {self.folder}: {why}.")

    def read(self, index: int, size: int) -> np.ndarray:
        record, done = np.empty(size, np.uint8), 0
        while done < size:
            count = os.preadv(self.file.fileno(), [record.data[done:]], index * size + done)
            if count == 0:
                raise OutputError(f"The file in {self.folder} with what clients keep is cut short.")
            done += count
        return record

    def write(self, index: int, record: np.ndarray) -> None:
        done, size = 0, len(record)
        try:
            while done < size:
                part = record.data[done:]
                done += os.pwrite(self.file.fileno(), part, index * size + done)
        except OSError as error:
            raise self._error(error) from error


class HostStore:
    """Rows [R, N, ...] of some leaves of R runs' states, of which some are read or written at once.

    Args:
      first: the rows before the first round, [R, N, ...], or [R, 1, ...] where all are equal.
      clients: N.
      rounds_rows: rows that the rounds may write, of each run.
      folder: where a file may be made.
      limit: bytes of records that memory may hold.
      own: bool [N], the clients whose rows are kept here, or None for all. Others' are zeros.

    Attributes:
      written: bool [R, N], here or elsewhere; the others are as they were at first.

    Raises:
      OutputError: the file can't be made, or the disk has too little space.
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
        self.own = np.ones(clients, bool) if own is None else own
        self.leaves = [Leaf(leaf.shape[2:], leaf.dtype) for leaf in self.first]
        self.ends = np.cumsum([leaf.nbytes for leaf in self.leaves]).tolist()
        runs = len(self.first[0]) if self.first else 1
        self.written = np.zeros((runs, clients), bool)
        needed = runs * min(written_rows, int(self.own.sum())) * self.record
        self.records: Any = _InMemory()
        if needed > limit:
            self.records = _InFile(folder or Path(tempfile.gettempdir()), needed)

    @property
    def record(self) -> int:
        """Bytes of one client in one run."""
        return self.ends[-1] if self.ends else 0

    def _parts(self, record: np.ndarray) -> list[np.ndarray]:
        """One client's row of each leaf, in the bytes of its record."""
        starts = [0, *self.ends[:-1]]
        return [
            record[start:end].view(leaf.dtype).reshape(leaf.shape)
            for start, end, leaf in zip(starts, self.ends, self.leaves, strict=True)
        ]

    def take(self, rows: np.ndarray, skip: np.ndarray | None = None) -> list[np.ndarray]:
        """The rows [R, K] of each leaf, [R, K, ...]; those to `skip` bool [R, K] are left open."""
        new = np.empty if self.own.all() else np.zeros
        out = [new((*rows.shape, *leaf.shape), leaf.dtype) for leaf in self.leaves]
        if not out:
            return out
        for (run, k), row in np.ndenumerate(rows):
            if not self.own[row] or (skip is not None and skip[run, k]):
                continue
            for into, part in zip(out, self._row(run, int(row)), strict=True):
                into[run, k] = part
        return out

    def some(self, runs: np.ndarray, rows: np.ndarray, leaves: Sequence[int]) -> list[np.ndarray]:
        """The rows [R, K] of some `runs` [R] and leaves, [R, K, ...] each."""
        chosen = [self.leaves[i] for i in leaves]
        out = [np.empty((*rows.shape, *leaf.shape), leaf.dtype) for leaf in chosen]
        for (r, k), row in np.ndenumerate(rows):
            parts = self._row(int(runs[r]), int(row))
            for into, i in zip(out, leaves, strict=True):
                into[r, k] = parts[i]
        return out

    def _row(self, run: int, row: int) -> list[np.ndarray]:
        if self.written[run, row]:
            return self._parts(self.records.read(run * self.clients + row, self.record))
        return [leaf[run, row if leaf.shape[1] > 1 else 0] for leaf in self.first]

    def put(self, rows: np.ndarray, values: Sequence[Any]) -> None:
        """Writes values [R, K, ...] of each leaf to those of the rows [R, K] that are kept here.

        Further values, [R, L, ...] with L > K, are left out.

        Raises:
          OutputError: the file can't be written.
        """
        values = [np.asarray(value) for value in values]
        if not values:
            return
        for (run, k), row in np.ndenumerate(rows):
            if self.own[row]:
                record = np.empty(self.record, np.uint8)
                for part, value in zip(self._parts(record), values, strict=True):
                    part[...] = value[run, k]
                self.records.write(run * self.clients + int(row), record)
            self.written[run, row] = True

    def put_changed(self, leaves: Sequence[np.ndarray]) -> None:
        """Writes the clients' rows of whole leaves [R, N, ...], but for those that are as at first.

        Raises:
          OutputError: the file can't be written.
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
            self.put(rows, [leaf[:, at] for leaf in here])

    @property
    def touched(self) -> np.ndarray:
        """int32 [K], the clients written in some run."""
        return np.flatnonzero(self.written.any(axis=0)).astype(np.int32)

    @property
    def in_file(self) -> bool:
        """Whether records lie in a file, where writing may fail."""
        return isinstance(self.records, _InFile)

    def saved(self, everywhere: bool = True) -> tuple[np.ndarray, list[np.ndarray]]:
        """(`touched` [K], their rows of each leaf [R, K, ...]).

        Args:
          everywhere: whether a process of several has rows in any case, see `SharedStore`.
        """
        touched = self.touched
        return touched, self.take(np.broadcast_to(touched, (len(self.written), len(touched))))


def _bits(values: np.ndarray) -> np.ndarray:
    """Bytes [R, K, ...] of values [R, K, ...], for comparison."""
    flat = np.ascontiguousarray(values)[..., None]
    return flat.view(np.uint8)


def whole_leaves(trees: Mapping[str, Sequence[np.ndarray]]) -> list[np.ndarray]:
    """All leaves of a saved state, [R, N, ...], wherever it lay (see `OffloadedProgram.saved`)."""
    leaves = list(trees["states"])
    if "hosted" not in trees:
        return leaves
    touched, places, clients = trees["hosted"]
    for place, first in zip(places, trees["first"], strict=True):
        rows = leaves[place]
        whole = np.broadcast_to(first, (len(first), int(clients), *first.shape[2:])).copy()
        whole[:, touched] = rows
        leaves[place] = whole
    return leaves
