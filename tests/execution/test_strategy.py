"""Strategies of the client axis: order, lanes, devices, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import InputError
from fedjax_pfl.engine import padding_efficiency
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.execution.rows import RowDevices, over_rows
from fedjax_pfl.execution.strategy import Execution, resolve_execution
from fedjax_pfl.testing.toys import count_compilations, toy_federation


def test_over_rows_keeps_the_order_of_rows():
    rows, lengths = jnp.arange(7), jnp.array([3, 9, 1, 4, 4, 0, 2])
    ways = [Execution(max_lanes, "map", devices) for max_lanes in (0, 1, 2, 3, 5, 7, 20)
            for devices in (1, 2)]  # fmt: skip
    ways += [Execution(max_lanes, "map", 2, deal=False) for max_lanes in (0, 1, 3)]
    there = RowDevices(jnp.array([1, 0, 1, 1, 0, 0, 1]), 4)

    @jax.jit
    def all_ways(lengths):
        return [
            [
                over_rows(lambda r, s: {"x": s * r}, rows, 2, way, known, devices)
                for known, devices in ((None, None), (lengths, None), (lengths, there))
            ]
            for way in ways
        ]

    for way, each in zip(ways, all_ways(lengths), strict=True):
        for done in each:
            np.testing.assert_array_equal(done["x"], 2 * np.arange(7), str(way))


@pytest.mark.costly
def test_rows_that_devices_do_not_divide_stay_where_they_are():
    """The fourth one of the second device is not there, and is not run; keys are rows too."""
    ran = []

    def where(row, broadcast):
        jax.debug.callback(lambda _: ran.append(1), row[1])
        return jax.lax.axis_index("clients"), jax.random.bits(row[0])

    rows = jax.random.split(jax.random.key(0), 7), jnp.zeros(7)
    execution = Execution(1, "map", 2, deal=False)
    for lengths in (None, jnp.arange(7)):
        place, bits = over_rows(where, rows, None, execution, lengths)
        assert place.tolist() == [0, 0, 0, 0, 1, 1, 1]
        np.testing.assert_array_equal(bits, jax.vmap(jax.random.bits)(rows[0]))
        jax.effects_barrier()
        assert len(ran) == 7
        ran.clear()


def test_chunks_of_equal_lengths_move_no_row():
    def doubled(rows):
        return over_rows(lambda row, _: 2 * row, rows, None, Execution(2, "map"))

    assert "gather" not in str(jax.make_jaxpr(doubled)(jnp.ones((6, 3))))
    on_two = jax.jit(lambda x: over_rows(lambda r, _: 2 * r, x, None, Execution(2, "map", 2)))
    assert "gather" not in on_two.lower(jnp.ones((7, 3))).as_text()


def test_padding_efficiency():
    steps, none = np.array([4, 0, 1, 5]), np.zeros(4, int)
    assert padding_efficiency(steps, Execution(1, "map")) == 1
    assert padding_efficiency(steps, Execution(0, "map")) == 10 / 20
    assert padding_efficiency(steps, Execution(2, "map")) == 10 / 10  # (5), (4, 1)
    assert padding_efficiency(steps, Execution(3, "map")) == 10 / 15  # (5), (4), (1)
    assert padding_efficiency(steps, Execution(1, "map", 2)) == 1
    assert padding_efficiency(steps, Execution(0, "map", 2)) == 10 / 18  # (5, 0), (4, 1)
    assert padding_efficiency(none, Execution(0, "map")) == 1
    assert padding_efficiency(np.array([2, 0, 2, 2]), Execution(0, "map")) == 6 / 8


def test_resolve_execution():
    assert resolve_execution("map", "vmap") == Execution(1, "vmap")
    assert resolve_execution("vmap", "map") == Execution(0, "map")
    assert resolve_execution("8", "map") == resolve_execution(8, "map") == Execution(8, "map")
    assert resolve_execution("1", "map") == Execution(1, "map")
    assert [str(Execution(max_lanes, "map")) for max_lanes in (0, 1, 8)] == ["vmap", "map", "8"]
    if jax.default_backend() == "cpu":
        assert resolve_execution() == Execution(1, "map")
    for platform, seeds in (("cpu", "map"), ("tpu", "map"), ("gpu", "vmap")):
        assert resolve_execution(platform=platform).seeds == seeds
        assert resolve_execution(platform=platform).max_lanes == (1 if platform == "cpu" else 0)
    assert [Execution(c, "map").lanes(5) for c in (0, 1, 3, 9)] == [5, 1, 3, 5]


@pytest.mark.parametrize("clients", ["0", 0, -2, "2.5", 2.5, "lanes", "", None, True])
def test_resolve_execution_refuses(clients):
    with pytest.raises(InputError, match="client_execution must be one of"):
        resolve_execution(clients)


def test_resolve_execution_refuses_unknown_seed_executions():
    with pytest.raises(InputError, match="seed_execution must be one of auto, map, vmap, got '2'"):
        resolve_execution("map", "2")


def test_resolve_execution_refuses_superscripts():
    with pytest.raises(InputError):
        resolve_execution("²")


@pytest.mark.parametrize("devices", [0, 3, -1, True, 1.0, "2"])
def test_devices_that_are_not_there(devices):
    with pytest.raises(InputError, match=r"devices must be in 1\.\.2"):
        resolve_execution(devices=devices)


def test_devices_share_the_rows_evenly():
    def where(row, broadcast):
        return jax.lax.axis_index("clients") * jnp.ones_like(row)

    lengths = jnp.array([9, 1, 8, 2, 7, 3])
    place = over_rows(where, jnp.arange(6), None, Execution(1, "map", 2), lengths)
    totals = [int(lengths[place == d].sum()) for d in (0, 1)]
    assert sorted(totals) == [14, 16]


# Five clients.
RAGGED = {"dtype": "float32", "validation_size": 0, "participation": 0.6}


@pytest.mark.costly
def test_two_devices_give_the_bits_of_one():
    """Three clients train, five are scored, in three runs: no count is divided by two."""
    one, of_clients, of_runs = (
        pfl.simulate(pfl.make_algorithm("fedavg"), toy_federation(**given), 3, seeds=(0, 1, 2))
        for given in (RAGGED, RAGGED | {"mesh": "clients:2"}, RAGGED | {"mesh": "runs:2"})
    )
    assert of_clients.execution == "map on each of 2 devices"
    assert of_runs.execution == "map, runs in 2 parts"
    for name, score in one.scores.items():
        np.testing.assert_array_equal(of_clients.scores[name], score, name)
        np.testing.assert_array_equal(of_runs.scores[name], score, name)


@pytest.mark.costly
def test_a_dealt_out_state_stays_so_and_compiles_once():
    algorithm = pfl.make_algorithm("local")
    federation = algorithm.prepare(toy_federation([8, 4, 6, 3], dtype="float32", devices=2))
    runs = make_runs(algorithm, federation, (0,))
    program = Program(runs, federation, rounds=4, capacity=2, scored=())
    states = program.start()
    (leaf, *_) = jax.tree.leaves(states)
    assert len(leaf.sharding.device_set) == 2
    assert leaf.addressable_shards[0].data.shape[1] == 2  # of four clients
    states, _, _ = program.advance(states, 0, 1)
    with count_compilations() as compiled:
        program.advance(states, 1, 2)
    assert not compiled


def test_as_many_are_scored_at_once_as_a_round_trains():
    one, two = Execution(1, "map"), Execution(1, "map", 2)
    assert [e.width(100, 100) for e in (one, two)] == [100, 100]
    assert [e.width(100, 20) for e in (one, two)] == [25, 26]  # in four turns, MODELS at most
    assert [e.width(7, 1) for e in (one, two)] == [7, 7]
    assert Execution(0, "map").width(1000, 5) == 1000
    assert Execution(60, "map").width(100, 20) == 50


@pytest.mark.parametrize("given", [np.arange(3), ["map"], None, 1])
def test_seed_executions_of_another_type(given):
    with pytest.raises(InputError, match="seed_execution must be one of auto, map, vmap, got"):
        resolve_execution("map", given)
