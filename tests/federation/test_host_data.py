"""Samples in host memory: those of a cohort, of a process, and back from devices."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.execution import host_rows
from fedjax_pfl.execution.mesh import mesh_of
from fedjax_pfl.federation import data_sharding, process_local_data
from fedjax_pfl.federation.data_sharding import distribute, on_mesh
from fedjax_pfl.federation.host_data import HostData
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import trees


def test_a_cohorts_samples_are_its_own():
    data = toy_federation(dtype="float32", client_state="host").data
    cut = HostData(data).of(np.array([3, 0, 3]), ("train",), 2)
    assert len(cut.samples) == 17 < len(data.samples)
    for row in (0, 3):
        for at in range(int(data.train.size[row])):
            mine, all_of_them = (
                one.fetch(one.train, row, jnp.array([at]), jnp.array([True]), "float32")
                for one in (cut, data)
            )
            jax.tree.map(np.testing.assert_array_equal, mine, all_of_them)
    with pytest.raises(trees.RowsNotOnDevice):
        replace(cut, device_rows=jnp.array([0, 3])).require_rows(jnp.array([0, 3]))


def same_samples(cut, data, rows):
    for name in ("train", "validation", "test"):
        for row in rows:
            for at in range(int(data.split(name).size[row])):
                mine, all_of_them = (
                    one.fetch(one.split(name), row, jnp.array([at]), jnp.array([True]), "float32")
                    for one in (cut, data)
                )
                jax.tree.map(np.testing.assert_array_equal, mine, all_of_them)


def test_a_process_keeps_its_own_clients_samples(monkeypatch):
    """Of a cohort each of two gives its own clients', zeros for others, and together all."""
    made = toy_federation(dtype="float32", client_state="host", validation_size=1)
    data, rows, given = made.data, np.array([4, 0, 3]), []
    monkeypatch.setattr(host_rows, "count", lambda: 2)
    for module in (process_local_data, data_sharding):
        monkeypatch.setattr(module, "is_distributed", lambda: True)
    for number in range(2):
        monkeypatch.setattr(host_rows, "index", lambda number=number: number)
        held = distribute(made).data
        assert held.own.tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]][number]
        assert len(held.samples) < len(data.samples)
        assert held.content() == data.content()
        given.append(HostData(held).of(rows, ("train", "validation", "test"), 4))
    assert given[0].own is None
    assert not np.logical_and(*(one.samples.any(axis=1) for one in given)).any()
    samples, labels = (sum(getattr(one, name) for one in given) for name in ("samples", "labels"))
    same_samples(replace(given[0], samples=samples, labels=labels), data, rows)


def test_samples_on_devices_come_back_to_the_host(monkeypatch):
    """`client_state="auto"` finds that the state does not fit once samples are on the devices."""
    made = toy_federation(dtype="float32", client_state="host", devices=2, validation_size=1)
    parts = on_mesh(made, mesh_of(2)).data
    assert parts.shards == 2
    monkeypatch.setattr(process_local_data, "is_distributed", lambda: True)
    held = process_local_data.process_local(parts)
    assert held.own.all() and held.shards == held.train.shards == 1
    assert isinstance(held.samples, np.ndarray)
    assert held.content() == made.data.content()
    same_samples(
        HostData(held).of(np.arange(5), ("train", "validation", "test"), 5), made.data, range(5)
    )
    same_samples(process_local_data.all_process_data(held), made.data, range(5))
