"""Sharding of a federation's samples over the devices of several processes."""

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_pfl.data.federated import FederatedData, Split
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.execution.mesh import CLIENTS, execution_mesh
from fedjax_pfl.execution.processes import is_distributed, put
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.process_local_data import all_process_data, process_local


def distribute(federation: Federation) -> Federation:
    """Distribute a federation over all devices of all processes.

    Each device holds the samples of its own clients; everything else is replicated. If groups of
    devices have runs of their own (`mesh`), the devices of each group divide the clients. With
    client_state="host" each process keeps its own clients' samples in host memory. In a single
    process the federation is returned unchanged.
    """
    if is_distributed() and federation.execution.client_state == "host":
        return replace(federation, data=process_local(federation.data))
    return place_on_devices(federation)


def place_on_devices(federation: Federation) -> Federation:
    """Return the federation with its samples on the devices."""
    if not is_distributed():
        return federation
    if federation.data.own is not None:
        federation = replace(federation, data=all_process_data(federation.data))
    federation = federation.with_devices(federation.execution)  # fixes an automatic mesh
    return on_mesh(federation, execution_mesh(federation.execution))


def on_mesh(federation: Federation, mesh: Mesh) -> Federation:
    """Place a federation on the devices of a mesh; see `distribute`."""
    replicated = NamedSharding(mesh, PartitionSpec())

    def everywhere(leaf):
        there = isinstance(leaf, jax.Array) and leaf.sharding == replicated
        return leaf if there else put(leaf, replicated)

    data = federation.data
    others = jax.tree.map(everywhere, replace(federation, data=None))
    if data.shards > 1:
        return replace(others, data=data)
    divided = mesh.shape[CLIENTS] > 1
    return replace(others, data=in_parts(data, mesh) if divided else jax.tree.map(everywhere, data))


class _Part(NamedTuple):
    """One device's samples: their pool indices, and each split's index into them."""

    pool: np.ndarray
    index: dict[str, np.ndarray]


def in_parts(data: FederatedData, mesh: Mesh) -> FederatedData:
    """Divide the pool of samples among the devices of a mesh; see `FederatedData.shards`."""
    shards = mesh.shape[CLIENTS]
    ours, replicated = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((CLIENTS,), ()))
    data = replace(data, shards=shards, digest=data.content())
    parts = [_part(data, k) for k in range(shards)]
    others = jax.tree.map(
        lambda leaf: put(leaf, replicated),
        replace(data, samples=None, labels=None, train=None, validation=None, test=None),
    )
    samples, labels = np.asarray(data.samples), np.asarray(data.labels)
    pools = [part.pool for part in parts]
    return replace(
        others,
        samples=_divided(lambda k: samples[pools[k]], list(map(len, pools)), ours),
        labels=_divided(lambda k: labels[pools[k]], list(map(len, pools)), ours),
        **{name: _split(data, name, parts, ours, replicated) for name in SPLITS},
    )


def _rows(data: FederatedData, part: int) -> slice:
    """Return the clients of a device."""
    return slice(part * data.share, (part + 1) * data.share)


def _bounds(data: FederatedData, split: Split, part: int) -> tuple[int, int]:
    """Return the bounds of a device's part of a split's index."""
    offset, size = (np.asarray(x)[_rows(data, part)] for x in (split.offset, split.size))
    return (int(offset[0]), int(offset[-1] + size[-1])) if len(offset) else (0, 0)


def _part(data: FederatedData, part: int) -> _Part:
    indices = {}
    for name in SPLITS:
        split = data.split(name)
        indices[name] = np.asarray(split.index)[slice(*_bounds(data, split, part))]
    pool = np.unique(np.concatenate(list(indices.values())))
    return _Part(pool, {name: np.searchsorted(pool, at) for name, at in indices.items()})


def _split(data, name: str, parts: list[_Part], ours, replicated) -> Split:
    split = data.split(name)
    offset, size = np.array(split.offset), np.asarray(split.size)
    for k in range(len(parts)):
        offset[_rows(data, k)] -= _bounds(data, split, k)[0]
    indices = [part.index[name].astype(np.int32) for part in parts]
    return replace(
        split,
        index=_divided(lambda k: indices[k], list(map(len, indices)), ours),
        offset=put(offset, replicated),
        size=put(size, replicated),
        shards=len(parts),
    )


def _divided(of, lengths: list[int], ours: NamedSharding) -> jax.Array:
    """Concatenate parts `of(k)` [lengths[k], ...], padded to the same length."""
    length, like = max(*lengths, 1), of(0)

    def one(place):
        part = of((place[0].start or 0) // length)
        return np.pad(part, [(0, length - len(part)), *[(0, 0)] * (part.ndim - 1)])

    shape = (len(lengths) * length, *like.shape[1:])
    return jax.make_array_from_callback(shape, ours, one)
