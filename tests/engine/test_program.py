"""The compiled program: what it costs to make, and for which devices it is made."""

import math
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.execution.mesh import mesh_of
from fedjax_pfl.testing.toys import SEEDS, toy_federation
from fedjax_pfl.utils.structs import struct

pytestmark = pytest.mark.costly

# A collective operation in a program's text: the shapes of its results, and its kind.
TRANSFER = r"= (.*?) (all-[a-z]+|reduce-scatter|collective-[a-z]+)(?:-start)?\("

traced = []


@struct
class Counting(FedAvg):
    """FedAvg that says when its functions are traced."""

    def round(self, ctx, state):
        traced.append("round")
        return super().round(ctx, state)

    def models(self, ctx, state, rows):
        traced.append("models")
        return super().models(ctx, state, rows)


def test_rounds_and_scores_are_traced_once():
    """Tracing takes as long as compiling: shapes, memory and rounds are of the same trace."""
    federation = toy_federation(
        participation=0.6, dtype="float32", client_execution="map", seed_execution="map"
    )
    program = Program(make_runs(Counting(), federation, SEEDS), federation, 4)
    traced.clear()
    assert program.memory().working > 0
    program.advance(program.start(), 0, 1)
    assert traced == ["round", "models"]


def test_a_federation_that_lies_on_the_mesh_is_simulated():
    """Arrays with a `NamedSharding` reach the devices' loops as arguments, with the same bits."""
    federation = toy_federation(participation=0.6, dtype="float32", devices=2)
    placed = jax.device_put(federation, NamedSharding(mesh_of(2), PartitionSpec()))
    program = Program(make_runs(FedAvg(), federation, SEEDS), federation, 4)
    found, wanted = (
        each.advance(each.start(), 0, 2) for each in (replace(program, federation=placed), program)
    )
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_the_program_for_a_described_device_is_the_one_that_runs():
    """Here the device is there: what is lowered for it ends with the same bits."""
    federation = toy_federation(participation=0.6, dtype="float32")
    program = Program(make_runs(FedAvg(), federation, SEEDS), federation, 4)
    lowered = program.lowered(jax.local_devices()[:1])
    states = lowered.start.compile()(program.runs, federation, np.int32(4))
    numbers = map(np.int32, (0, 2, 4, 1))
    result = lowered.rounds.compile()(states, program.runs, federation, *numbers)
    wanted = program.advance(program.start(), 0, 2)
    jax.tree.map(np.testing.assert_array_equal, result, wanted)


def numbers(shapes):
    """How many numbers arrays have, such as f32[2,3] and s32[]."""
    axes = re.findall(r"\w\[([\d,]*)\]", shapes)
    return sum(math.prod(int(size) for size in one.split(",") if size) for one in axes)


def test_devices_that_share_clients_are_chosen_when_lowered():
    """Whatever the federation was made for; the mesh is of those devices, whichever these are.

    The server's part is sums of each device's clients, which are added up: no model is gathered.
    """
    federation = toy_federation((4,) * 4, dtype="float32")
    devices = jax.local_devices()[::-1]  # another order than this process has them in
    lowered = pfl.Simulation(pfl.make_algorithm("fedavg"), federation).lower(devices=devices)
    assert lowered.federation.execution.devices == len(devices) == 2
    compiled = lowered.rounds.compile()
    moved = re.findall(TRANSFER, compiled.as_text() or "", re.MULTILINE)
    sizes = [(kind, numbers(shapes)) for shapes, kind in moved]
    model = federation.plan.num_parameters
    assert any(size == model for _, size in sizes)
    assert all(kind == "all-reduce" or size < model for kind, size in sizes)
    (shardings, _) = compiled.input_shardings
    meshes = {s.mesh for s in jax.tree.leaves(shardings) if hasattr(s, "mesh")}
    assert [list(mesh.devices) for mesh in meshes] == [devices]
    with pytest.raises(ValueError, match="another number of devices"):
        lowered_program = Program(make_runs(FedAvg(), federation, SEEDS), federation, 4)
        lowered_program.lowered(devices)
