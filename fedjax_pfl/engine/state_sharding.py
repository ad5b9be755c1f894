"""Layouts of states and metrics between programs: sharded, padded, or of some clients.

Inside a program states and measurements are those of N clients. Between programs they are on the
devices that share the clients, padded so that each device has as many rows (`mesh.place`), and of
`PartialStates` the devices have the rows of some clients. On the host, in results and in
checkpoints, there are N rows again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.engine.state_store import Address
from fedjax_pfl.execution.mesh import CLIENTS, RUNS, execution_mesh, place, rows_of
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.structs import by_field, static, struct
from fedjax_pfl.utils.typing import State, Tree

MEASURED = ("scores", "clients", "up", "down")  # of every client, in every round


class Layout(NamedTuple):
    """Assignment of a state's leaves to the device or a `HostStore`, equal for all runs.

    Attributes:
      tree: structure of the state.
      hosted: for each leaf, whether it is in the store.
    """

    tree: Any
    hosted: tuple[bool, ...]

    @classmethod
    def of(cls, shapes: State, rows: int, small: int) -> "Layout":
        """Return the layout for states of so many rows, of which `small` bytes stay on the device.

        Args:
          shapes: of the states, without padding.
          rows: runs times clients.
        """

        def hosted(value: Tree, axes: int) -> Tree:
            def one(leaf):
                known = not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
                return axes == 1 and known and leaf.size // rows * leaf.dtype.itemsize > small

            return jax.tree.map(one, value)

        return cls(jax.tree.structure(shapes), tuple(jax.tree.leaves(by_field(hosted, shapes))))

    def joined(self, device: Sequence[Any], rows: Sequence[Any]) -> State:
        """Return the state of the leaves on the device and of those in the store, in order."""
        here, there = iter(device), iter(rows)
        leaves = [next(there if hosted else here) for hosted in self.hosted]
        return jax.tree.unflatten(self.tree, leaves)

    def parted(self, state: State) -> tuple[list[Any], list[Any]]:
        """Invert `joined`."""
        leaves = list(zip(jax.tree.leaves(state), self.hosted, strict=True))
        return [x for x, hosted in leaves if not hosted], [x for x, hosted in leaves if hosted]


@struct
class PartialStates:
    """States of all runs with the rows of some clients on the devices.

    Attributes:
      device: the leaves that are on the devices as a whole, [R, ...].
      rows: rows of some clients of the other leaves, [R, K, ...].
      address: where a program reads other clients' rows.
      layout: which leaves are in `device`, and which in `rows`.
      clients: K.
    """

    device: list[Any]
    rows: list[Any]
    address: Address
    layout: Layout = static()
    clients: int = static()


def unpack_states(states: Tree, federation: Federation) -> tuple[State, Address | None]:
    """Return (the states inside a program, without padding; where to read other rows, or None)."""
    if not isinstance(states, PartialStates):
        return unpadded(states, federation), None
    mesh = execution_mesh(federation.execution)
    rows = rows_of(states.rows, mesh, states.clients, RUNS, CLIENTS)
    return states.layout.joined(states.device, rows), states.address


def pack_states(state: State, like: Tree, federation: Federation) -> Tree:
    """Invert `unpack_states`: return the states between programs, in the form of `like`."""
    if not isinstance(like, PartialStates):
        return placed(state, federation)
    mesh = execution_mesh(federation.execution)
    device, rows = like.layout.parted(state)
    return replace(like, device=place(device, mesh, RUNS), rows=place(rows, mesh, RUNS, CLIENTS))


def placed(states: State, federation: Federation) -> State:
    """Shard states [R, N, ...] by runs and clients over the execution's devices.

    Raises:
      TypeError: a field of the state does not declare its client axes.
    """
    if federation.execution.all_devices == 1:
        return states
    mesh, lead = _mesh_axes(federation)
    return by_field(
        lambda value, axes: place(value, mesh, lead, *([CLIENTS] if axes else [])), states
    )


def unpadded(states: State, federation: Federation) -> State:
    """Invert `placed` in a traced function; clients stay on their devices."""
    if not is_padded(federation):
        return states
    (mesh, lead), count = _mesh_axes(federation), federation.num_clients
    return by_field(lambda v, axes: rows_of(v, mesh, count, lead, CLIENTS) if axes else v, states)


def unsharded_states(states: State, leaves: Sequence[np.ndarray], federation: Federation) -> State:
    """Return states [R, N, ...] from leaves on the host, structured as `states`.

    Leaves that another process has stay empty.
    """
    count = federation.num_clients

    def cut(leaf: np.ndarray) -> np.ndarray:
        return leaf[:, :count].copy() if leaf.ndim > 1 and leaf.shape[1] > count else leaf

    on_host = jax.tree.unflatten(jax.tree.structure(states), leaves)
    return by_field(lambda value, axes: jax.tree.map(cut, value) if axes else value, on_host)


def placed_measured(buffers: Tree, matrices: Tree, federation: Federation) -> tuple[Tree, Tree]:
    """Shard measurements [R, rounds, N, ...] and matrices [R, ..., N, N] for output.

    Nothing is done if the number of devices divides that of clients: the compiler shards them then.
    """
    if not is_padded(federation):
        return buffers, matrices
    mesh, lead = _mesh_axes(federation)

    def matrix(leaf):
        if leaf.shape[-2] != federation.num_clients:  # one row for all
            return leaf
        return place(leaf, mesh, lead, *[None] * (leaf.ndim - 3), CLIENTS)

    of_clients = {name: place(buffers[name], mesh, lead, None, CLIENTS) for name in MEASURED}
    return buffers | of_clients, jax.tree.map(matrix, matrices)


def unsharded_metrics(buffers: Tree, matrices: Tree, federation: Federation) -> tuple[Tree, Tree]:
    """Invert `placed_measured` on the host."""
    if not is_padded(federation):
        return buffers, matrices
    count = federation.num_clients

    def matrix(leaf):
        return np.asarray(leaf)[..., : min(leaf.shape[-2], count), :]

    of_clients = {name: buffers[name] for name in MEASURED}
    of_clients = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :, :count], of_clients)
    return buffers | of_clients, jax.tree.map(matrix, matrices)


def is_padded(federation: Federation) -> bool:
    """Return whether clients are padded to a multiple of the devices."""
    return federation.num_clients % federation.execution.devices != 0


def _mesh_axes(federation: Federation):
    """Return the mesh, and its axis that shares the runs, if any."""
    execution = federation.execution
    return execution_mesh(execution), RUNS if execution.run_groups > 1 else None
