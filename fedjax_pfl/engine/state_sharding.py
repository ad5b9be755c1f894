"""What a simulation's program is given and returns: its clients' axes are filled up on devices.

Inside a program states and measurements are those of the N clients; where it begins and ends they
lie on the devices that share the clients, with as many rows on each (`mesh.place`). On the host, in
results and in checkpoints, there are N again.
"""

from collections.abc import Sequence

import jax
import numpy as np

from fedjax_pfl.execution.mesh import AXIS, RUNS, mesh_of, place, rows_of
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.structs import by_field
from fedjax_pfl.utils.typing import State, Tree

MEASURED = ("scores", "clients", "up", "down")  # of every client, in every round


def placed(states: State, federation: Federation) -> State:
    """States [R, N, ...] with the axes of runs and clients sharded over the execution's devices.

    Raises:
      TypeError: a field of the state does not declare its client axes.
    """
    if federation.execution.all_devices == 1:
        return states
    mesh, lead = _lies(federation)
    return by_field(lambda value, axes: place(value, mesh, lead, *([AXIS] if axes else [])), states)


def unfilled(states: State, federation: Federation) -> State:
    """The reverse of `placed` in a traced function; clients stay on their devices."""
    if not is_filled(federation):
        return states
    (mesh, lead), count = _lies(federation), federation.num_clients
    return by_field(lambda v, axes: rows_of(v, mesh, count, lead, AXIS) if axes else v, states)


def unsharded_states(states: State, leaves: Sequence[np.ndarray], federation: Federation) -> State:
    """States [R, N, ...] of the leaves on the host, with the structure of `states`.

    Leaves that another process has stay empty.
    """
    count = federation.num_clients

    def cut(leaf: np.ndarray) -> np.ndarray:
        return leaf[:, :count].copy() if leaf.ndim > 1 and leaf.shape[1] > count else leaf

    on_host = jax.tree.unflatten(jax.tree.structure(states), leaves)
    return by_field(lambda value, axes: jax.tree.map(cut, value) if axes else value, on_host)


def placed_measured(buffers: Tree, matrices: Tree, federation: Federation) -> tuple[Tree, Tree]:
    """Measurements [R, rounds, N, ...], and matrices [R, ..., N, N], as they leave the program.

    Where devices divide the clients they are left to the compiler, which has them shared too.
    """
    if not is_filled(federation):
        return buffers, matrices
    mesh, lead = _lies(federation)

    def matrix(leaf):
        if leaf.shape[-2] != federation.num_clients:  # one row for all
            return leaf
        return place(leaf, mesh, lead, *[None] * (leaf.ndim - 3), AXIS)

    of_clients = {name: place(buffers[name], mesh, lead, None, AXIS) for name in MEASURED}
    return buffers | of_clients, jax.tree.map(matrix, matrices)


def unsharded_metrics(buffers: Tree, matrices: Tree, federation: Federation) -> tuple[Tree, Tree]:
    """The reverse of `placed_measured`, on the host."""
    if not is_filled(federation):
        return buffers, matrices
    count = federation.num_clients

    def matrix(leaf):
        return np.asarray(leaf)[..., : min(leaf.shape[-2], count), :]

    of_clients = {name: buffers[name] for name in MEASURED}
    of_clients = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :, :count], of_clients)
    return buffers | of_clients, jax.tree.map(matrix, matrices)


def is_filled(federation: Federation) -> bool:
    """Whether the devices that share the clients do not divide them."""
    return federation.num_clients % federation.execution.devices != 0


def _lies(federation: Federation):
    """The mesh, and the axis of it that shares the runs, if any."""
    execution = federation.execution
    return mesh_of(execution.devices, execution.runs), RUNS if execution.runs > 1 else None
