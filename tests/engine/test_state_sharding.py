"""Clients that devices do not divide: shared all the same, and without filling on the host."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.compiled import advance
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.execution.mesh import CLIENTS, mesh_of, place, rows_of
from fedjax_pfl.testing.toys import assert_close, count_compilations, toy_federation, toy_for

SIZES = (7, 3, 1, 10, 4)  # of five clients: two devices have three and two


def program_of(name, sizes=SIZES, devices=2):
    algorithm = pfl.make_algorithm(name)
    options = {"dtype": "float32", "validation_size": 0, "devices": devices}
    federation = algorithm.prepare(toy_federation(sizes, **options))
    return Program(make_runs(algorithm, federation, (0,)), federation, rounds=4, capacity=2)


def test_rows_are_filled_up_and_given_back():
    mesh = mesh_of(2)
    tree = {"kept": np.arange(10.0).reshape(1, 5, 2), "of none": np.arange(3)}
    there = place(tree, mesh, None, CLIENTS)
    assert [s.data.shape for s in there["kept"].addressable_shards] == [(1, 3, 2)] * 2
    np.testing.assert_array_equal(there["kept"][:, :5], tree["kept"])
    assert not there["kept"][:, 5].any()
    np.testing.assert_array_equal(there["of none"], tree["of none"])
    shapes = jax.eval_shape(lambda: {"kept": tree["kept"]})
    assert place(shapes, mesh, None, CLIENTS)["kept"].sharding == there["kept"].sharding
    assert place(there["kept"], mesh, None, CLIENTS).shape == (1, 6, 2)  # it is at rest

    @jax.jit
    def doubled(x):
        rows = rows_of(x, mesh, 5, None, CLIENTS)
        assert rows.shape == (1, 5, 2)
        return place(2 * rows, mesh, None, CLIENTS)

    traced = doubled.trace(there["kept"])
    assert str(traced.jaxpr).count("sharding_constraint") == 2  # also where nothing else tells
    compiled = traced.lower().compile()
    np.testing.assert_array_equal(compiled(there["kept"])[:, :5], 2 * tree["kept"])
    for moved in ("all-gather", "all-reduce", "collective-permute", "all-to-all"):
        assert moved not in compiled.as_text()


@pytest.mark.costly
def test_states_and_measurements_are_sharded_over_devices():
    program = program_of("feddwa")
    states = program.start()
    (leaf, *_) = jax.tree.leaves(states.models)
    assert leaf.shape[1] == 6 and leaf.addressable_shards[0].data.shape[1] == 3
    chunk = advance(*program._operands(states, 0, 2), **program._options)
    result = [chunk.buffers["up"], *chunk.buffers["scores"].values(), *chunk.matrices.values()]
    axes = [2] * (len(result) - len(chunk.matrices)) + [-2] * len(chunk.matrices)
    for one, axis in zip(result, axes, strict=True):
        assert one.shape[axis] == 6 and one.addressable_shards[0].data.shape[axis] == 3
    with count_compilations() as compiled:
        chunk = program.advance(chunk.states, 2, 1)
    assert not compiled
    assert {one.shape[-1] for one in chunk.buffers["scores"].values()} == {5}
    assert {one.shape[-2:] for one in chunk.matrices.values()} == {(5, 5)}
    whole = program.to_host(chunk.states)
    saved = jax.tree.leaves(program.saved(chunk.states))
    for kept, leaf, one in zip(saved, *map(jax.tree.leaves, (whole, chunk.states)), strict=True):
        assert kept.shape[1] == 5
        np.testing.assert_array_equal(kept, leaf)
        np.testing.assert_array_equal(kept, np.asarray(one)[:, :5])
    again = program.restored({"states": saved}, chunk.states)
    jax.tree.map(np.testing.assert_array_equal, program.to_host(again), whole)
    assert [x.sharding for x in jax.tree.leaves(again)] == [
        x.sharding for x in jax.tree.leaves(chunk.states)
    ]


@pytest.mark.costly
def test_each_device_has_the_states_of_its_own_runs():
    algorithm = pfl.make_algorithm("local")
    federation = toy_federation(SIZES, dtype="float32", validation_size=0, mesh="runs:2")
    program = Program(make_runs(algorithm, federation, (0, 1)), federation, rounds=4, capacity=2)
    states = program.start()
    for length in (0, 1):
        states = program.advance(states, 0, length).states
        for leaf in jax.tree.leaves(states):
            assert {shard.data.shape for shard in leaf.addressable_shards} == {(1, *leaf.shape[1:])}


def test_padding_rows_count_as_memory():
    five, six = (program_of("local", (4,) * n).held() for n in (5, 6))
    assert five.state == six.state
    assert program_of("local", (4,) * 5, devices=1).held().state * 6 == six.state * 5


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("feddwa", {}),
        ("scaffold", {"participation": 0.6, "client_execution": "vmap"}),
        ("fedavg", {"train_sizes": (7,)}),
    ],
    ids=["ragged", "drawn", "fewer than devices"],
)
def test_two_devices_give_the_numbers_of_one(name, options):
    with jax.enable_x64(True):
        algorithm, found = pfl.make_algorithm(name), []
        for devices in (1, 2):
            given = {"train_sizes": SIZES} | options
            federation = toy_for(algorithm, given.pop("train_sizes"), devices=devices, **given)
            result = pfl.simulate(algorithm, federation, 3)
            models, states = result.final.models(), result.final.states
            found.append((result.scores, result.clients, result.matrices, models, states))
        assert_close(*found, name, 1e-9)
