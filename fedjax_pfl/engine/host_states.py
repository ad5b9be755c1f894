"""States of all runs in host memory and on the devices, and their form in checkpoints."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_pfl.engine.state_sharding import Layout
from fedjax_pfl.engine.state_store import BLOCK, HostStore, restored_leaves
from fedjax_pfl.execution.processes import readable
from fedjax_pfl.utils.typing import State


class HostStates(NamedTuple):
    """States of all runs.

    Attributes:
      layout: which leaves are in the store.
      device: the leaves on the device, [R, ...].
      store: the others.
    """

    layout: Layout
    device: list[Any]
    store: HostStore

    def to_host(self) -> State:
        """Return all states, leaves [R, N, ...], on the host."""
        saved = self.saved(everywhere=True)
        trees = {name: jax.tree.leaves(readable(tree)) for name, tree in saved.items()}
        return jax.tree.unflatten(self.layout.tree, map(np.asarray, restored_leaves(trees)))

    def saved(self, everywhere: bool = False) -> dict[str, Any]:
        """Return the leaves by name, with only the written rows of the store.

        Of several processes the first one has these rows, the others only if `everywhere`.
        """
        written, rows = self.store.read_written(everywhere)
        trees = {"states": self.layout.joined(self.device, rows)}
        if rows:
            hosted = np.flatnonzero(self.layout.hosted).astype(np.int32)
            trees["hosted"] = [written, hosted, np.int32(self.store.clients)]
            trees["first"] = self.store.first
        return trees

    def restored(self, trees: Mapping[str, list[np.ndarray]]) -> "HostStates":
        """Return the states of a checkpoint, given those before the first round.

        Rows are written to the store; the other leaves are on the host.
        """
        hosted, runs = np.flatnonzero(self.layout.hosted), len(self.store.written)
        if "hosted" in trees and [*trees["hosted"][1]] == [*hosted]:
            leaves, written = trees["states"], np.asarray(trees["hosted"][0])
            for start in range(0, len(written), BLOCK):
                at = written[start : start + BLOCK]
                values = [leaves[number][:, start : start + BLOCK] for number in hosted]
                self.store.write(np.broadcast_to(at, (runs, len(at))), values)
        else:
            leaves = restored_leaves(trees)
            self.store.write_changed([leaves[number] for number in hosted])
        device = [x for x, on_host in zip(leaves, self.layout.hosted, strict=True) if not on_host]
        return self._replace(device=device)
