"""Runs over devices, clients over devices, or both: what is chosen and refused, the numbers."""

import contextlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.cli import devices
from fedjax_pfl.execution.mesh import CLIENTS, described_devices, mesh_of, place
from fedjax_pfl.execution.mesh_shape import RUNS, MeshShape, automatic, nearest, parsed
from fedjax_pfl.execution.strategy import Execution, resolve_execution
from fedjax_pfl.testing.toys import assert_close, toy_federation
from tests.execution.mesh_cases import numbers


def test_runs_come_first_and_no_device_is_without_work():
    assert [automatic(8, runs) for runs in (1, 2, 3, 10, 12, 16)] == [
        (8, 1), (4, 2), (8, 1), (4, 2), (2, 4), (1, 8)
    ]  # fmt: skip
    free = resolve_execution(devices=2)
    assert free.shared(4) == Execution(free.max_lanes, free.seeds, 1, run_groups=2)
    assert free.shared(4).shared(3).run_groups == 2  # for good
    assert resolve_execution().shared(4).all_devices == 1


def test_parse_mesh():
    assert parsed("clients:4,runs:2") == parsed(" runs : 2, clients:4") == MeshShape(4, 2)
    assert parsed("runs:3") == MeshShape(1, 3)
    assert [nearest(MeshShape(4, 4), n) for n in (8, 4, 1, 6)] == [(4, 2), (2, 2), (1, 1), (3, 2)]
    two = resolve_execution(mesh="runs:2")
    assert (two.devices, two.run_groups, str(two)) == (1, 2, "map, runs in 2 parts")
    assert resolve_execution(mesh="clients:2", devices=2).devices == 2


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("client:2", "Unknown axis of the mesh 'client'. Did you mean 'clients'"),
        ("runs:2,runs:1", "mesh must be 'auto' or devices by axis, such as .* got 'runs:2,runs:1'"),
        ("runs:0", "mesh must be 'auto' or devices by axis"),
        (2, "mesh must be 'auto' or devices by axis, .* got 2"),
        ("", "mesh must be 'auto' or devices by axis"),
        ("clients:4,runs:2", "takes 8 devices, but there are 2: the nearest .* clients:2,runs:1"),
    ],
)
def test_resolve_execution_refusals(mesh, said):
    with pytest.raises(pfl.InputError, match=said):
        resolve_execution(mesh=mesh)


def test_a_mesh_of_other_devices_or_more_runs_is_refused():
    with pytest.raises(pfl.InputError, match=r"--devices is 2: the nearest .* clients:1,runs:2"):
        devices.prepare("2", 20, "runs:3")
    with pytest.raises(pfl.InputError, match=r"--devices is 4: the nearest .* clients:4,runs:1"):
        devices.prepare("4", 20, "clients:2")
    assert devices.prepare("auto", 20, "runs:2") == 2
    federation = toy_federation(dtype="float32", mesh="runs:2")
    text = r"2 runs at a time, but there are 1 \(seeds times settings\): clients:2,runs:1 would use"
    with pytest.raises(pfl.InputError, match=text):
        pfl.simulate(pfl.make_algorithm("fedavg"), federation, 1)


def test_no_mesh_takes_fewer_devices_than_it_was_made_for():
    """As of a federation made in a process with more."""
    with pytest.raises(pfl.InputError, match=r"clients:2,runs:2 takes 4 devices, but there are 2"):
        mesh_of(2, 2)
    with (
        described_devices(jax.devices()[:1]),
        pytest.raises(pfl.InputError, match="but there are 1"),
    ):
        mesh_of(2)


def test_runs_that_devices_do_not_divide_are_on_all_of_them():
    for runs, each in ((4, 2), (3, 3)):
        there = place(np.zeros((runs, 5)), mesh_of(1, 2), RUNS, CLIENTS)
        assert [shard.data.shape for shard in there.addressable_shards] == [(each, 5)] * 2


def test_two_runs_on_two_devices_have_one_each():
    federation = toy_federation((7, 3, 1, 10), dtype="float32", devices=2)
    shared = [federation.execution.shared(n) for n in (1, 2, 3)]
    assert [one.run_groups for one in shared] == [1, 2, 1]
    assert not federation.with_devices(shared[1]).execution.deal  # clients stay on their device


SIZES = (4, 8, 3, 5, 2)  # of five clients


@pytest.mark.costly
def test_another_mesh_goes_on(tmp_path):
    algorithm = pfl.make_algorithm("feddwa")

    def simulated(mesh, stop=False):
        federation = toy_federation(SIZES, dtype="float32", mesh=mesh)
        with contextlib.closing(pfl.Checkpoints(tmp_path, 0)) as checkpoints:
            return pfl.simulate(algorithm, federation, 4, seeds=(0, 1), chunk=2, chunk_seconds=0,
                                checkpoints=checkpoints, stop=lambda progress: stop)  # fmt: skip

    assert simulated("runs:2", stop=True).stopped
    result = simulated("clients:2").scores
    wanted = pfl.simulate(algorithm, toy_federation(SIZES, dtype="float32"), 4, seeds=(0, 1))
    for name, score in wanted.scores.items():
        np.testing.assert_allclose(result[name], score, 1e-4, err_msg=name)


@pytest.mark.costly
@pytest.mark.parametrize(("names", "part"), [("feddwa,cfl,spfl", 1.0), ("fedavg,fedbn", 0.6)])
def test_eight_devices_give_the_numbers_of_one(tmp_path, names, part):
    """Five clients and five runs, of which no mesh has a divisor."""
    equal_on_eight_devices(tmp_path, names.split(","), 5, 5, part, "clients:4,runs:2", "runs:8")


@pytest.mark.costly
@pytest.mark.parametrize(("clients", "part"), [(10, 1.0), (13, 0.7)])
@pytest.mark.parametrize("quarter", range(4))
def test_every_algorithm_has_the_same_numbers_on_eight_devices(tmp_path, quarter, clients, part):
    """Clients of unequal size, of whom the last devices have fewer than the others, or none."""
    known = pfl.core.ALGORITHMS.items()  # other tests register their own
    names = sorted(n for n, one in known if one.__module__.startswith("fedjax_pfl."))[quarter::4]
    equal_on_eight_devices(tmp_path, names, clients, 1, part, "clients:8")


def equal_on_eight_devices(tmp_path, names, clients, runs, part, *meshes):
    words = [",".join(names), str(clients), str(runs), str(part), ";".join(meshes), str(tmp_path)]
    subprocess.run([sys.executable, "-m", "tests.execution.mesh_cases", *words], check=True)
    with jax.enable_x64(True):
        for name in names:
            wanted = numbers(name, None, clients, runs, participation=part)
            files = sorted(tmp_path.glob(f"{name}-?.npz"))
            assert len(files) == len(meshes)
            for file in files:
                with np.load(file) as found:
                    assert_close(dict(found), wanted, file.name)
