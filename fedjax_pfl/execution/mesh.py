"""The mesh of devices that share the client axis, and where arrays lie on it."""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_pfl.execution.processes import all_devices, put
from fedjax_pfl.typing import Device, Tree

AXIS = "clients"  # of the device mesh
_described = jax.make_user_context(None)  # JAX's caches depend on it


def described(devices: Sequence[Device]) -> AbstractContextManager:
    """Programs traced inside are for these devices, which need not be there, in place of ours."""
    return _described(tuple(devices))


def mesh_of(devices: int) -> Mesh:
    """The first `devices` of all that programs can use, or of the described ones, in one row."""
    return _row((_described.value or all_devices())[:devices])


@functools.cache
def _row(devices: tuple[Device, ...]) -> Mesh:
    return Mesh(np.asarray(devices), (AXIS,))


def place(tree: Tree, devices: int, *lead: str | None) -> Tree:
    """Puts arrays on the devices, or constrains their placement in a traced function.

    Args:
      tree: arrays, tracers or shapes.
      devices: how many share the client axis; with one the tree is returned as it is.
      lead: for every leading axis, `AXIS` where it is sharded, or None. Other axes are not sharded,
        nor is an axis whose length the number of devices does not divide.
    """
    if devices == 1:
        return tree

    def one(leaf):
        axes = [
            name if name is None or size % devices == 0 else None
            for name, size in zip(lead, leaf.shape, strict=False)
        ]
        sharding = NamedSharding(mesh_of(devices), PartitionSpec(*axes))
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        if isinstance(leaf, Tracer):
            return lax.with_sharding_constraint(leaf, sharding)
        return put(leaf, sharding)

    return jax.tree.map(one, tree)
