"""The mesh of devices that share the axes of clients and of runs, and where arrays lie on it."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_pfl.execution.processes import all_devices, put, several
from fedjax_pfl.execution.shares import CLIENTS, RUNS
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.typing import Device, Tree

AXIS = CLIENTS  # of the device mesh
_described = jax.make_user_context(None)  # JAX's caches depend on it
_sharing = jax.make_user_context(None)
_platform = jax.make_user_context("cpu")


def described(devices: Sequence[Device]) -> AbstractContextManager:
    """Programs traced inside are for these devices, which need not be there, in place of ours."""
    return _described(tuple(devices))


def mesh_of(devices: int, runs: int = 1) -> Mesh:
    """The first devices of all that programs can use, or of the described ones.

    In one row, which shares the clients; or `runs` such rows, each with runs of its own.
    """
    return _mesh((_described.value or all_devices())[: devices * runs], runs)


@functools.cache
def _mesh(devices: tuple[Device, ...], runs: int) -> Mesh:
    if runs == 1:
        return Mesh(np.asarray(devices), (AXIS,))
    return Mesh(np.asarray(devices).reshape(runs, -1), (RUNS, AXIS))


@contextmanager
def sharing(execution: Execution) -> Iterator[None]:
    """Programs traced inside know that devices share their clients, see `shared_clients`.

    They also know the platform that they are made for (`platform`).

    Devices of one CPU have the same memory: there it costs more to move columns than each gains.
    """
    apart = execution.platform != "cpu" or several()
    alone = execution.devices == 1 or not apart
    shared = nullcontext() if alone else _sharing((execution.devices, execution.runs))
    with _platform(execution.platform), shared:
        yield


def platform() -> str:
    """That a round traced inside `sharing` is made for; "cpu" elsewhere."""
    return _platform.value


def not_shared() -> AbstractContextManager:
    """Programs traced inside are those of one device and its own clients."""
    return _sharing(None)


def shared_clients() -> Mesh | None:
    """The mesh whose devices share the clients, where what they exchange is worth a thought."""
    return None if _sharing.value is None else mesh_of(*_sharing.value)


def place(tree: Tree, mesh: Mesh, *lead: str | None) -> Tree:
    """Puts arrays on the devices, or constrains their placement in a traced function.

    Args:
      tree: arrays, tracers or shapes.
      mesh: of one device the tree is returned as it is.
      lead: for every leading axis, that of the mesh by which it is sharded, or None. Other axes are
        not sharded, nor is an axis whose length the number of devices does not divide.
    """
    if mesh.size == 1:
        return tree

    def one(leaf):
        axes = [
            name if name in mesh.shape and size % mesh.shape[name] == 0 else None
            for name, size in zip(lead, leaf.shape, strict=False)
        ]
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        if isinstance(leaf, Tracer):
            return lax.with_sharding_constraint(leaf, sharding)
        return put(leaf, sharding)

    return jax.tree.map(one, tree)
