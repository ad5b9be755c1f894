"""A pool of samples in parts: each device has its own clients' samples, and runs these clients."""

import jax
import numpy as np
import pytest

from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.execution.mesh import CLIENTS, mesh_of
from fedjax_pfl.execution.rows import row_devices_of
from fedjax_pfl.federation.data_sharding import distribute, on_mesh
from fedjax_pfl.testing.toys import assert_close, toy_federation

SOME = {"participation": 0.6}
EQUAL = {"train_sizes": (4,) * 5, "test_sizes": (3,) * 5}
GIVEN = {
    "initial_model": {"fc_0/kernel": np.full((4, 5), 0.1), "head/bias": np.array([0.1, -0.2, 0])},
    "partial": True,
    "freeze": "fc_0",
    "optimizer": "adam",
    "keep_optimizer_state": True,
}


def divided(federation):
    return on_mesh(federation, mesh_of(2))


@pytest.mark.costly
@pytest.mark.parametrize(
    "options",
    [
        SOME | {"client_execution": "map"},
        SOME | EQUAL | {"client_execution": "vmap"},
        {"train_sizes": (7, 3, 1, 4)},
        SOME | GIVEN,
    ],
    ids=["map", "equal clients", "in place", "given values, frozen layers, kept states"],
)
def test_clients_at_home_give_the_numbers_of_clients_anywhere(options):
    """Of 5 clients, 3 are at home on the first device."""
    with jax.enable_x64(True):
        federation = toy_federation(**options, devices=2)
        chunks = []
        for each in (divided(federation), federation):
            program = Program(make_runs(FedAvg(), each, (0, 1)), each, 2)
            chunks.append(program.advance(program.start(), 0, 2))
        assert_close(*chunks, "clients at home", 1e-9)


def test_a_device_has_its_own_clients_samples_and_no_others():
    federation = toy_federation((7, 3, 1, 10, 4), dtype="float32", devices=2)
    data, parts = federation.data, divided(federation).data
    rows = [range(3), range(3, 5)]
    for shard, own in zip(parts.samples.addressable_shards, rows, strict=True):
        held = {sample.tobytes() for sample in np.asarray(shard.data) if sample.any()}
        wanted = set()
        for split in (data.train, data.validation, data.test):
            for row in own:
                at = np.asarray(split.index)[int(split.offset[row]) :][: int(split.size[row])]
                wanted |= {sample.tobytes() for sample in np.asarray(data.samples)[at]}
        first = np.asarray(data.samples)[np.asarray(data.train.index)[0]]
        assert held - {first.tobytes()} <= wanted <= held | {first.tobytes()}
    assert parts.content() == data.content()  # wherever they lie
    assert row_devices_of(parts, np.arange(5)).device is None  # no row moves
    assert {axis for axes in (parts.labels.sharding.spec,) for axis in axes} == {CLIENTS}


def test_one_process_keeps_its_federation():
    federation = toy_federation(dtype="float32")
    assert distribute(federation) is federation


@pytest.mark.costly
def test_no_part_for_devices_beyond_the_clients():
    """One client, two devices: the second one has nothing, and the client still learns."""
    federation = toy_federation((6,), (3,), dtype="float32", devices=2)
    chunks = []
    for each in (divided(federation), federation):
        program = Program(make_runs(FedAvg(), each, (0,)), each, 1)
        chunks.append(program.advance(program.start(), 0, 1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *chunks)
