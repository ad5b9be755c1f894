"""Clients whose state lies in host memory: the same bits, checkpoints either way, and refusals."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.aggregation import streamed
from fedjax_pfl.engine import arguments, host_reads
from fedjax_pfl.engine.checkpoints import Checkpoints
from fedjax_pfl.engine.host_program import HostProgram
from fedjax_pfl.engine.host_states import HostStates
from fedjax_pfl.engine.state_store import Address, HostStore, Reader
from fedjax_pfl.execution.mesh import mesh_of
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import trees
from tests.engine import simulated
from tests.engine.simulated import on_host

ROUNDS = 5
OPTIONS = {"seeds": (0, 3), "eval_every": 2, "matrix_rounds": (1, 4), "chunk": 3}


@pytest.fixture(autouse=True)
def everything_on_the_host(monkeypatch):
    """Toys are so small that their state would stay on the device."""
    monkeypatch.setattr(HostProgram, "small", 8)


def federation(where, **options):
    given = {"dtype": "float32", "participation": 0.4, "validation_size": 0} | options
    return toy_federation(client_state=where, **given)


def run(name, where, federated=None, settings=None, **options):
    algorithm = pfl.make_algorithm(name, settings)
    made = federation(where, **(federated or {}))
    return pfl.simulate(algorithm, made, ROUNDS, **OPTIONS | options)


def assert_same(a, b, tolerance=0):
    simulated.assert_same(a, b, tolerance)
    same = partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    jax.tree.map(same, a.final.models(), b.final.models())


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("scaffold", {}, {}),
        ("fedper", {"keep_optimizer_state": True, "momentum": 0.5}, {}),
        ("l2c", {"validation_size": 1}, {}),
        ("ifca", {}, {}),
        ("apfl", {}, {}),
        ("pfedhn", {}, {"local_head": True}),
        ("fedala", {}, {"participants": "sampled"}),
        ("pfedla", {}, {}),
    ],
)
def test_client_state_on_the_host_gives_the_same_bits(name, options, settings):
    assert_same(*(run(name, where, options, settings) for where in ("device", "host")))


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "settings", "options", "rows"),
    [
        ("ditto", {}, {"momentum": 0.9, "keep_optimizer_state": True}, {1}),
        ("pfedla", {"initial": "independent"}, {}, {5}),
    ],
)
def test_a_replicated_model_is_one_row_before_the_first_round(name, settings, options, rows):
    algorithm = pfl.make_algorithm(name, settings)
    host, device = (
        arguments.checked_program(algorithm, federation(where, **options)).start()
        for where in ("host", "device")
    )
    assert {leaf.shape[1] for leaf in host.store.first} == rows
    chex.assert_trees_all_equal(on_host(host), jax.tree.map(np.asarray, on_host(device)))


@pytest.mark.costly
def test_a_cohort_that_devices_do_not_divide_has_the_same_bits():
    """Three of five clients, on two devices."""
    made = {"participation": 0.6}
    assert_same(run("ditto", "device", made), run("ditto", "host", made | {"mesh": "clients:2"}))


@pytest.mark.costly
def test_models_of_all_clients_are_read_block_by_block(monkeypatch):
    expected = run("fedamp", "device")
    monkeypatch.setattr(streamed, "BLOCK", 1)
    result = run("fedamp", "host")
    for left, right in ((expected.scores, result.scores), (expected.scalars, result.scalars)):
        chex.assert_trees_all_close(left, right, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(expected.final.models(), result.final.models(), atol=1e-5)


def test_feddwa_with_client_state_on_the_host():
    """Beside a run on the device that another test makes as well."""
    made = toy_federation(
        dtype="float32", participation=0.6, validation_size=0, client_state="host"
    )
    result = pfl.simulate(pfl.make_algorithm("feddwa"), made, simulated.ROUNDS, **simulated.OPTIONS)
    assert result.final.states.store.written.any()
    assert_same(simulated.whole("feddwa"), result)


@pytest.mark.costly
def test_final_models_that_are_chosen_by_test_samples():
    ifca = pfl.make_algorithm("ifca", {"scored_by": "test"})
    on_host, on_device = (
        pfl.simulate(
            ifca,
            toy_federation(dtype="float32", participation=0.6, client_state=where),
            rounds=1,
        ).final.models()
        for where in ("host", "device")
    )
    chex.assert_trees_all_close(on_host, on_device, atol=1e-5)


PLACES = [  # of the first round, the next two and the last two
    (("device", "auto"), ("host", "runs:2"), ("device", "runs:2")),
    (("host", "clients:2"), ("device", "clients:2"), ("host", "runs:2")),
]


@pytest.mark.costly
@pytest.mark.parametrize("places", PLACES)
def test_a_run_goes_on_in_another_place_with_the_same_bits(tmp_path, places):
    expected = run("ditto", "device")
    assert not isinstance(expected.final.states, HostStates)
    for (where, mesh), rounds in zip(places, (1, 3, ROUNDS), strict=True):
        kept = Checkpoints(tmp_path, every_seconds=1e9)
        stop = simulated.stops_after(2 if rounds > 1 else 1)
        given = {"checkpoints": kept, "stop": stop, "chunk_seconds": 0}
        result = run("ditto", where, {"mesh": mesh}, **given)
        kept.close()
        assert result.rounds == rounds
        assert isinstance(result.final.states, HostStates) == (where == "host")
        if where == "host":
            assert 0 < result.final.states.store.written.sum() < 2 * result.num_clients
    assert not result.stopped
    assert_same(result, expected, 1e-6 if ("host", "clients:2") in places else 0)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "sfl",
            {},
            "sfl needs models, other state or samples of clients that do not take part in a",
        ),
        ("cwfedavg", {}, "cwfedavg needs models"),
        ("local", {}, "local needs models.*'device', or local.participants=sampled"),
        ("fedala", {}, "fedala needs .*or fedala.participants=sampled"),
        ("pfedme", {}, "pfedme needs .*take client_state='device', or pfedme.participants=sampled"),
        ("fedavg", {"participation": 1.0}, "these are all clients: take a lower participation"),
        (
            "fedavg",
            {"participation": 0.5, "sampling": "poisson"},
            "here for all 5 clients: take sampling='fixed', a lower participation, or client_state",
        ),
    ],
)
def test_what_needs_all_clients_is_refused_before_anything_is_compiled(name, options, said):
    with pytest.raises(pfl.InputError, match=said):
        arguments.checked_program(pfl.make_algorithm(name), federation("host", **options))


def test_no_plan_is_made_of_what_moves():
    simulation = pfl.Simulation(pfl.make_algorithm("ditto"), federation("host"))
    with pytest.raises(pfl.InputError, match="A plan does not count what moves"):
        simulation.lower(jax.devices()[:1])


def test_processes_do_not_read_others_rows(monkeypatch):
    monkeypatch.setattr(host_reads, "is_distributed", lambda: True)
    with pytest.raises(pfl.InputError, match="fedamp needs models"):
        arguments.checked_program(pfl.make_algorithm("fedamp"), federation("host", devices=2))


@pytest.mark.costly
@pytest.mark.parametrize("mesh", ["clients:2", "runs:2"])
def test_devices_of_a_mesh_read_others_rows(mesh):
    """Each of two runs its own, also where it has a device of its own."""
    options = {"validation_size": 1}
    expected = run("fedfomo", "device", options)
    result = run("fedfomo", "host", options | {"mesh": mesh})
    assert result.final.states.store.written.any()
    assert_same(expected, result, 1e-5)


def test_each_run_reads_its_own_rows():
    first = [np.zeros((2, 1, 3), np.float32), np.zeros((2, 1), np.int16)]
    store = HostStore(first, 6, 6)
    everyone = np.broadcast_to(np.arange(6), (2, 6))
    wide = np.arange(36, dtype=np.float32).reshape(2, 6, 3)
    store.write(everyone[:, 1:], [wide[:, 1:], np.zeros((2, 5), np.int16)])
    shapes = [jax.ShapeDtypeStruct((2, 3), jnp.float32)]

    @jax.jit
    def read(at, rows):
        return jax.vmap(lambda at: Reader(at, mesh_of(1))((0,), shapes, rows)[0])(at)

    at = Address(np.full(2, store.number, np.int32), np.arange(2, dtype=np.int32), True)
    result = read(at, jnp.array([0, 4], jnp.int32))
    np.testing.assert_array_equal(result, np.stack([0 * wide[:, 0], wide[:, 4]], axis=1))


@pytest.mark.parametrize(
    "options",
    [
        {"keep_optimizer_state": True, "momentum": 0.5},
        {"extra_loss": pfl.training.WeightDistribution(0.1)},
    ],
)
def test_rounds_traced_beforehand_may_read_samples_on_the_host(options):
    program = arguments.checked_program(pfl.make_algorithm("fedper"), federation("host", **options))
    assert any(program.layout.hosted)


@pytest.mark.parametrize(
    "use", [jnp.mean, lambda x: x[0], lambda x: x + 1, lambda x: x == 1, bool, list, np.asarray]
)
def test_nothing_is_computed_from_some_rows_in_place_of_all(use):
    rows = jnp.array([1, 2])
    leaf = trees.PartialLeaf(jnp.ones((2, 3)), rows, 5)
    with pytest.raises(TypeError, match=r"PartialLeaf|on the device"):
        use(leaf)
    np.testing.assert_array_equal(trees.take(leaf, rows), np.ones((2, 3)))
    assert trees.put(leaf, rows, jnp.zeros((2, 3))).shape == (5, 3)
