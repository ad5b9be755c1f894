"""Movement of clients' rows and samples from host memory to the devices."""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_pfl.engine.state_store import HostStore
from fedjax_pfl.execution.host_rows import combined
from fedjax_pfl.execution.mesh import CLIENTS, RUNS, execution_mesh, place, rows_of
from fedjax_pfl.execution.processes import is_distributed
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.host_data import HostData
from fedjax_pfl.federation.process_local_data import on_all_devices
from fedjax_pfl.utils.typing import Tree


class RoundInput(NamedTuple):
    """Input of a round: its clients [R, M], their rows, and the federation with samples."""

    clients: np.ndarray
    rows: list[Any]
    federation: Federation


class Transfers:
    """Puts rows and samples of some clients on the devices.

    Attributes:
      federation: whose samples are on the host.
      mesh: the devices.
    """

    def __init__(self, federation: Federation):
        self.federation = federation
        self.mesh: Mesh = execution_mesh(federation.execution)

    @cached_property
    def data(self) -> HostData:
        return HostData(self.federation.data)

    @cached_property
    def shell(self) -> Federation:
        """The federation without samples, on the device."""
        return self.put(replace(self.federation, data=self.data.shell))

    def put(self, tree: Tree, *lead: str | None) -> Tree:
        """Put arrays on the devices as `mesh.place` does."""
        return jax.device_put(tree) if self.mesh.size == 1 else place(tree, self.mesh, *lead)

    def rows(self, leaves: list[np.ndarray]) -> list[jax.Array]:
        """Put rows [R, K, ...] on the devices; each process provides its own."""
        if is_distributed():
            return jax.block_until_ready(combined(leaves, self.mesh, RUNS, CLIENTS))
        return self.put(leaves, RUNS, CLIENTS)

    def samples(self, clients: np.ndarray, splits: tuple, most: int) -> Federation:
        """Return the federation with samples of some clients; each process provides its own."""
        data = self.data.of(clients, splits, most)
        if self.data.own is None:
            return replace(self.shell, data=self.put(data))
        others = self.put(replace(data, samples=None, labels=None))
        both = on_all_devices(data, self.data.own)
        data = replace(others, samples=both.samples, labels=both.labels)
        return replace(self.shell, data=jax.block_until_ready(data))

    def round_input(
        self, store: HostStore, clients: np.ndarray, waiting: Any, splits: tuple, most: int
    ) -> RoundInput:
        """Start moving a round's input to the devices.

        Args:
          waiting: (clients [R, M], rows [R, M, ...]) of the previous round that are not in the
            store yet, or None.
          splits: names of the splits whose samples the round reads.
          most: largest number of different clients.
        """
        skip = at = None
        if waiting is not None:
            same = clients[:, :, None] == waiting[0][:, None, :]
            skip, at = same.any(-1), np.where(same.any(-1), same.argmax(-1), -1).astype(np.int32)
        rows = store.read(clients, skip)
        if is_distributed():  # no overlapping collectives
            jax.block_until_ready(() if waiting is None else waiting[1])
        rows = self.rows(rows)
        if waiting is not None:
            rows = merged(rows, waiting[1], at, mesh=self.mesh)
        if is_distributed():
            jax.block_until_ready(rows)
        return RoundInput(clients, rows, self.samples(clients, splits, most))


@partial(jax.jit, static_argnames=("mesh",), donate_argnums=(0,))
def merged(coming, done, at, mesh):
    """Replace rows [R, M, ...] by the previous round's where `at` [R, M] is not -1."""
    coming, done = rows_of((coming, done), mesh, at.shape[1], RUNS, CLIENTS)

    def one(new, made, at):
        known = (at >= 0).reshape(at.shape + (1,) * (new.ndim - 1))
        return jnp.where(known, made[jnp.maximum(at, 0)], new)

    rows = jax.tree.map(lambda new, made: jax.vmap(one)(new, made, at), coming, done)
    return place(rows, mesh, RUNS, CLIENTS)
