"""Samples in the host memory of several processes, each holding those of its own clients."""

from dataclasses import replace

import jax
import numpy as np

from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.execution.host_rows import combined, on_hosts, own_rows
from fedjax_pfl.execution.mesh import mesh_of
from fedjax_pfl.execution.processes import all_devices, is_distributed
from fedjax_pfl.federation.host_data import HostData


def process_local(data: FederatedData) -> FederatedData:
    """Return the data in this process's host memory, restricted to its own clients.

    If samples are sharded over devices, a process's own clients are those of its devices; otherwise
    clients are divided into contiguous blocks (`FederatedData.own`). Data of a single process, and
    process-local data, are returned unchanged.
    """
    if not is_distributed() or data.own is not None:
        return data
    if data.shards > 1:
        return _from_devices(data)
    own = own_rows(data.num_clients)
    rows, indices, splits = np.flatnonzero(own), [], {}
    for name in SPLITS:
        split = data.split(name)
        index, offset, size = map(np.asarray, (split.index, split.offset, split.size))
        mine = [index[offset[row] : offset[row] + size[row]] for row in rows]
        indices.append(np.concatenate(mine) if mine else index[:0])
        offset = np.zeros_like(offset)
        offset[rows] = np.cumsum(size[rows]) - size[rows]
        splits[name] = offset
    pool = np.unique(np.concatenate([*indices, np.zeros(1, np.int32)]))  # one sample at least
    parts = {
        name: replace(
            data.split(name),
            index=np.searchsorted(pool, np.append(at, pool[0])).astype(np.int32),
            offset=offset,
        )
        for at, (name, offset) in zip(indices, splits.items(), strict=True)
    }
    samples, labels = (np.asarray(x)[pool] for x in (data.samples, data.labels))
    return replace(data, samples=samples, labels=labels, own=own, digest=data.content(), **parts)


def _from_devices(data: FederatedData) -> FederatedData:
    """Return `process_local` of sharded data; a replicated shard belongs to one process."""
    own, device_of, length = np.zeros(data.num_clients, bool), {}, len(data.samples) // data.shards
    for shard in data.samples.addressable_shards:
        if shard.replica_id == 0:
            device_of[(shard.index[0].start or 0) // length] = shard.device
    numbers = sorted(device_of)
    shard_of = data.shard_of(np.arange(data.num_clients))
    own[np.isin(shard_of, numbers)] = True

    def local_part(array: jax.Array) -> np.ndarray:
        """Concatenate this process's shards of an array; zeros if it has none."""
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        parts = [np.asarray(shards[device_of[k]]) for k in numbers]
        return np.concatenate(parts) if parts else np.zeros((1, *array.shape[1:]), array.dtype)

    first = np.zeros(data.shards, np.int32)  # where a part begins here, in parts
    first[numbers] = np.arange(len(numbers))
    parts = {}
    for name in SPLITS:
        split = data.split(name)
        index, each = local_part(split.index), len(split.index) // data.shards
        index = index + np.repeat(np.arange(len(index) // each or 1), each)[: len(index)] * length
        offset = np.asarray(split.offset) + first[shard_of] * each
        offset = np.where(own, offset, 0).astype(np.int32)
        parts[name] = replace(split, index=index.astype(np.int32), offset=offset, shards=1)
    samples, labels = local_part(data.samples), local_part(data.labels)
    return replace(data, samples=samples, labels=labels, own=own, shards=1, **parts)


def on_all_devices(data: FederatedData, own: np.ndarray | None) -> FederatedData:
    """Combine samples and labels of all processes on the devices of all processes.

    A collective operation; each process passes zeros for clients other than `own`.
    """
    if own is None:
        return data
    mesh = mesh_of(len(all_devices()))
    both = combined([np.asarray(x)[None] for x in (data.samples, data.labels)], mesh)
    samples, labels = (x[0] for x in both)
    return replace(data, samples=samples, labels=labels)


def all_process_data(data: FederatedData) -> FederatedData:
    """Gather process-local data on every process's host; a collective operation."""
    if data.own is None:
        return data
    held, everyone = HostData(data), np.arange(data.num_clients)
    cut = on_all_devices(held.of(everyone, SPLITS, len(everyone)), held.own)
    samples, labels = on_hosts([cut.samples, cut.labels])
    return replace(cut, samples=samples, labels=labels)
