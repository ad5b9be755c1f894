"""Rows of several processes on the devices: whose they are, and that their bits stay."""

import jax
import numpy as np
import pytest

from fedjax_pfl.execution import host_rows, processes
from fedjax_pfl.execution.mesh import CLIENTS, RUNS, mesh_of


@pytest.mark.parametrize("total", [1, 4, 10])
def test_each_row_has_one_process(monkeypatch, total):
    monkeypatch.setattr(host_rows, "count", lambda: 4)
    kept = []
    for k in range(4):
        monkeypatch.setattr(host_rows, "index", lambda k=k: k)
        kept.append(host_rows.own_rows(total))
    np.testing.assert_array_equal(np.sum(kept, axis=0), 1)
    assert np.concatenate([np.flatnonzero(own) for own in kept]).tolist() == list(range(total))
    assert max(own.sum() for own in kept) == -(-total // 4)


def test_bits_stay_on_their_way():
    """In one process, which has all rows."""
    odd = np.array([-0.0, np.nan, -np.inf, 1e-42, 3, 7], np.float32).reshape(2, 3)
    odd.view(np.uint32)[0, 1] |= 5  # a NaN of its own
    given = [odd, np.arange(6, dtype=np.int16).reshape(2, 3, 1), odd.reshape(2, 3, 1) > 1]
    devices = len(processes.all_devices())
    result = host_rows.combined(given, mesh_of(devices), RUNS, CLIENTS)
    for one, other in zip(host_rows.on_hosts(result), given, strict=True):
        assert one.shape[1] == 3 + -3 % devices  # at rest
        one = np.ascontiguousarray(one[:, :3])
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def test_what_all_processes_give_is_added_up():
    """As if each of the devices were a process of its own."""
    devices = jax.devices()
    mesh = host_rows.Mesh(np.asarray(devices).reshape(-1, 1), (host_rows.PROCESS, host_rows.SLOT))
    parts = np.zeros((len(devices), 1, 3), np.uint32)
    parts[np.arange(3) % len(devices), 0, np.arange(3)] = np.array([-0.0, 1, -2], "f4").view("u4")
    sharding = host_rows.NamedSharding(mesh, host_rows.PartitionSpec(host_rows.PROCESS))
    kinds = ((3, np.dtype(np.float32)),)
    (whole,) = host_rows._added(
        [jax.device_put(parts, sharding)], rows=kinds, mesh=mesh_of(len(devices)), lead=()
    )
    assert np.asarray(whole).tobytes() == np.array([-0.0, 1, -2], np.float32).tobytes()
