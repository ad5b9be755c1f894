"""What clients keep, on the hosts of several processes: each has the rows of its own clients.

All processes draw the same cohorts, so all know which rows are written, and by whom they are kept.
Every function here that says so is called by all of them together.
"""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.engine.host_store import BLOCK, HostStore
from fedjax_pfl.execution import processes
from fedjax_pfl.execution.combining import combined, on_hosts, own_rows
from fedjax_pfl.execution.mesh import mesh_of

PIECE = 2**26  # bytes of rows that devices have at once for a checkpoint, but at least a client's


class SharedStore(HostStore):
    """The store of one of several processes; all make theirs together.

    Args:
      first, clients, written_rows: see `HostStore`.
      folder: where a file may be made, if this process sees it.
      limit: bytes of records that the memory of one machine may hold.

    Raises:
      OutputError: of any process, see `HostStore`.
    """

    def __init__(
        self,
        first: Sequence[np.ndarray],
        clients: int,
        written_rows: int,
        folder: Path | None = None,
        limit: float = float("inf"),
    ):
        machines = processes.exchange(socket.gethostname())
        limit /= machines.count(machines[processes.index()])
        folder = folder if folder is not None and folder.is_dir() else None
        base, own = super().__init__, own_rows(clients)
        processes.agreed(lambda: base(first, clients, written_rows, folder, limit, own))
        self._may_fail = any(processes.exchange(self.in_file))

    def put(self, rows: np.ndarray, values: Sequence[Any]) -> None:
        """See `HostStore.put`; all together, with the rows of all.

        Raises:
          OutputError: of any process.
        """
        base, values = super().put, on_hosts(values)
        if self._may_fail:
            processes.agreed(lambda: base(rows, values))
        else:
            base(rows, values)

    def saved(self, everywhere: bool = True) -> tuple[np.ndarray, list[np.ndarray]]:
        """See `HostStore.saved`; all together. Others than the first get rows if `everywhere`."""
        touched, runs = self.touched, len(self.written)
        kept = everywhere or processes.is_first()
        shape = (runs, len(touched) if kept else 0)
        out = [np.empty((*shape, *leaf.shape), leaf.dtype) for leaf in self.leaves]
        width = min(BLOCK, max(PIECE // max(runs * self.record, 1), 1))
        for start in range(0, len(touched) if out else 0, width):
            at = touched[np.minimum(np.arange(start, start + width), len(touched) - 1)]
            rows = self.take(np.broadcast_to(at, (runs, width)))
            whole = combined(rows, mesh_of(len(processes.all_devices())))
            for leaf, part in zip(out, whole, strict=True):
                part = np.asarray(part)  # in every process: nobody runs ahead of the others
                if kept:
                    leaf[:, start : start + width] = part[:, : len(touched) - start]
        return touched, out
