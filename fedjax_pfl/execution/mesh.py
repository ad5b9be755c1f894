"""The mesh of devices over which the axes of clients and runs are sharded.

At the inputs and outputs of a program, JAX needs equally many rows of an array on each device. So
between programs every axis of clients is padded with zeros to a multiple of the devices (`place`).
Inside a program the padding is removed (`rows_of`); the last devices may then have fewer rows.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from fedjax_pfl.execution.mesh_shape import CLIENTS, RUNS, MeshShape, check
from fedjax_pfl.execution.processes import all_devices, is_distributed, put
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.utils.typing import Device, Tree

_described = jax.make_user_context(None)  # a part of the keys of JAX's caches
_sharing = jax.make_user_context(None)
_platform = jax.make_user_context("cpu")


def described_devices(devices: Sequence[Device]) -> AbstractContextManager:
    """Context in which traced programs are for described devices."""
    return _described(tuple(devices))


def mesh_of(devices: int, runs: int = 1) -> Mesh:
    """Return a mesh of the first available devices, or of the described ones.

    Its devices share the clients; with several `runs`, each part of the runs has so many devices.

    Raises:
      InputError: fewer devices are available.
    """
    there, asked = _described.value or all_devices(), MeshShape(devices, runs)
    if asked.devices > len(there):
        check(asked, len(there), f"there are {len(there)}")
    return _mesh(there[: asked.devices], runs)


def execution_mesh(execution: Execution) -> Mesh:
    """Return the mesh of an execution, see `mesh_of`."""
    return mesh_of(execution.devices, execution.run_groups)


@functools.cache
def _mesh(devices: tuple[Device, ...], runs: int) -> Mesh:
    if runs == 1:
        return Mesh(np.asarray(devices), (CLIENTS,))
    return Mesh(np.asarray(devices).reshape(runs, -1), (RUNS, CLIENTS))


@contextmanager
def sharing(execution: Execution) -> Iterator[None]:
    """Context in which traced programs know the devices that share clients, and their platform.

    They are read by `shared_clients` and `platform`. Devices of one CPU count as a single one, as
    exchanging columns in the same memory costs more than it gains.
    """
    apart = execution.platform != "cpu" or is_distributed()
    single = execution.devices == 1 or not apart
    shared = nullcontext() if single else _sharing((execution.devices, execution.run_groups))
    with _platform(execution.platform), shared:
        yield


def platform() -> str:
    """Return the platform of a round that is traced inside `sharing`; "cpu" elsewhere."""
    return _platform.value


def not_shared() -> AbstractContextManager:
    """Context in which traced programs are for one device and its own clients."""
    return _sharing(None)


def shared_clients() -> Mesh | None:
    """Return the mesh whose devices share the clients, if communication matters there."""
    return None if _sharing.value is None else mesh_of(*_sharing.value)


def place(tree: Tree, mesh: Mesh, *lead: str | None) -> Tree:
    """Put arrays on the devices, or constrain their sharding in a traced function.

    An axis of clients is padded with zeros to a multiple of the devices.

    Args:
      tree: arrays, tracers or shapes.
      mesh: with one device the tree is returned unchanged.
      lead: for every leading axis, that of the mesh by which it is sharded, or None. Other axes are
        not sharded, nor is one of runs whose length the number of devices does not divide.
    """
    if mesh.size == 1:
        return tree

    def one(leaf):
        shape = _padded_shape(leaf.shape, mesh, lead)
        sharding = NamedSharding(mesh, _spec(shape, mesh, lead))
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)
        more = [(0, n - m) for n, m in zip(shape, leaf.shape, strict=True)]
        filled = shape != leaf.shape
        if isinstance(leaf, Tracer):
            leaf = jnp.pad(leaf, more) if filled else leaf
            return lax.with_sharding_constraint(leaf, sharding)
        return put(np.pad(leaf, more) if filled else leaf, sharding)

    return jax.tree.map(one, tree)


def shapes_on(sharding: Sharding | None, tree: Tree) -> Tree:
    """Return the shapes and types of a tree with a sharding, or without one for None."""
    shapes = jax.eval_shape(lambda tree: tree, tree)
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes)


def rows_of(tree: Tree, mesh: Mesh, count: int, *lead: str | None) -> Tree:
    """Return the first `count` clients of arrays placed by `place`, in a traced function.

    Rows stay on their devices, of which the last ones may have fewer.

    Args:
      lead: as for `place`.
    """

    def one(leaf):
        shape = tuple(
            count if name == CLIENTS else size
            for name, size in zip_longest(lead[: leaf.ndim], leaf.shape)
        )
        if shape == leaf.shape:
            return leaf
        leaf = lax.slice(leaf, (0,) * leaf.ndim, shape)
        spec = _spec(_padded_shape(shape, mesh, lead), mesh, lead)
        return lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(one, tree)


def _padded_shape(
    shape: tuple[int, ...], mesh: Mesh, lead: Sequence[str | None]
) -> tuple[int, ...]:
    """Return the shape with its axis of clients padded."""
    names = zip_longest(lead[: len(shape)], shape)
    return tuple(n + -n % mesh.shape[CLIENTS] if name == CLIENTS else n for name, n in names)


def _spec(shape: tuple[int, ...], mesh: Mesh, lead: Sequence[str | None]) -> PartitionSpec:
    return PartitionSpec(
        *(
            name if name in mesh.shape and size % mesh.shape[name] == 0 else None
            for name, size in zip(lead, shape, strict=False)
        )
    )
