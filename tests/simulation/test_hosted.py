"""Clients whose state lies in host memory: the same bits, checkpoints either way, and refusals."""

import errno
import os
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import trees
from fedjax_pfl.aggregation import streamed
from fedjax_pfl.execution import combining
from fedjax_pfl.execution.mesh import mesh_of
from fedjax_pfl.federation import at_home, spreading
from fedjax_pfl.federation.host_data import HostData
from fedjax_pfl.federation.spreading import on_mesh, spread
from fedjax_pfl.simulation import host_needs, host_reads, host_shares, hosted, request
from fedjax_pfl.simulation import host_programs as programs
from fedjax_pfl.simulation.checkpoints import Checkpoints
from fedjax_pfl.simulation.first_rows import with_first_rows
from fedjax_pfl.simulation.fitting import fitting
from fedjax_pfl.simulation.host_store import HostStore
from fedjax_pfl.testing.toys import toy_federation
from tests.simulation import test_resume

ROUNDS = 5
OPTIONS = {"seeds": (0, 3), "eval_every": 2, "matrix_rounds": (1, 4), "chunk": 3}


@pytest.fixture(autouse=True)
def everything_on_the_host(monkeypatch):
    """Toys are so small that their state would stay on the device."""
    monkeypatch.setattr(host_needs, "SMALL", 8)


def federation(where, **options):
    given = {"dtype": "float32", "participation": 0.4, "validation_size": 0} | options
    return toy_federation(client_state=where, **given)


def run(name, where, federated=None, settings=None, **options):
    algorithm = pfl.make_algorithm(name, settings)
    made = federation(where, **(federated or {}))
    return pfl.simulate(algorithm, made, ROUNDS, **OPTIONS | options)


def whole(states):
    return states.whole() if isinstance(states, hosted.HostedStates) else states


def assert_same(a, b, tolerance=0):
    def same(x, y, message=""):
        if tolerance:
            np.testing.assert_allclose(x, y, tolerance, tolerance, err_msg=message)
        else:
            np.testing.assert_array_equal(x, y, err_msg=message)

    for name in ("scores", "clients", "scalars", "matrices"):
        left, right = getattr(a, name), getattr(b, name)
        assert left.keys() == right.keys()
        for key in left:
            same(left[key], right[key], f"{name} {key}")
    np.testing.assert_array_equal(a.copies_up, b.copies_up)
    pairs = (whole(a.final.states), whole(b.final.states)), (a.final.models(), b.final.models())
    for left, right in pairs:
        jax.tree.map(same, left, right)


CASES = {
    "fedavg_ft": {},
    "scaffold": {},
    "fedper": {"keep_optimizer_state": True, "momentum": 0.5},
    "l2c": {"validation_size": 1},
    "lga": {},
    "ifca": {},
    "apfl": {},
    "pfedhn": {},
    "fedala": {},
    "fedamp": {},
    "heurfedamp": {},
    "fedfomo": {"validation_size": 1},
    "perfedavg_async": {},
    "pfedla": {},
}
SETTINGS = {"pfedhn": {"local_head": True}, "fedala": {"who": "selected"}}


SECOND = ("heurfedamp", "perfedavg_async")  # of kinds that another case shows


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.thorough] * (n in SECOND)) for n in CASES]
)
def test_results_have_the_same_bits(name):
    settings = SETTINGS.get(name)
    assert_same(*(run(name, where, CASES[name], settings) for where in ("device", "host")))


@pytest.mark.slow
def test_a_cohort_that_devices_do_not_divide_has_the_same_bits():
    """Three of five clients, on two devices."""
    made = {"participation": 0.6}
    assert_same(run("ditto", "device", made), run("ditto", "host", made | {"mesh": "clients:2"}))


@pytest.mark.slow
def test_models_of_all_clients_are_read_block_by_block(monkeypatch):
    expected = run("fedamp", "device")
    monkeypatch.setattr(streamed, "BLOCK", 1)
    result = run("fedamp", "host")
    for left, right in ((expected.scores, result.scores), (expected.scalars, result.scalars)):
        chex.assert_trees_all_close(left, right, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(expected.final.models(), result.final.models(), atol=1e-5)


def test_feddwa_has_the_same_bits():
    """Beside a run on the device that another test makes as well."""
    made = toy_federation(
        dtype="float32", participation=0.6, validation_size=0, client_state="host"
    )
    result = pfl.simulate(
        pfl.make_algorithm("feddwa"), made, test_resume.ROUNDS, **test_resume.OPTIONS
    )
    assert result.final.states.store.written.any()
    assert_same(test_resume.whole("feddwa"), result)


PLACES = [  # of the first round, the next two and the last two
    (("host", "auto"), ("device", "auto"), ("host", "auto")),
    (("device", "auto"), ("host", "runs:2"), ("device", "runs:2")),
    (("host", "clients:2"), ("device", "clients:2"), ("host", "runs:2")),
]


@pytest.mark.slow
@pytest.mark.parametrize("places", PLACES)
def test_a_run_goes_on_in_another_place_with_the_same_bits(tmp_path, places):
    expected = run("ditto", "device")
    assert not isinstance(expected.final.states, hosted.HostedStates)
    for (where, mesh), rounds in zip(places, (1, 3, ROUNDS), strict=True):
        kept = Checkpoints(tmp_path, every_seconds=1e9)
        stop = test_resume.stops_after(2 if rounds > 1 else 1)
        given = {"checkpoints": kept, "stop": stop, "chunk_seconds": 0}
        result = run("ditto", where, {"mesh": mesh}, **given)
        kept.close()
        assert result.rounds == rounds
        assert isinstance(result.final.states, hosted.HostedStates) == (where == "host")
        if where == "host":
            assert 0 < result.final.states.store.written.sum() < 2 * result.num_clients
    assert not result.stopped
    assert_same(result, expected, 1e-6 if ("host", "clients:2") in places else 0)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sfl", {}, "sfl needs models or other state of clients that do not take part, in a"),
        pytest.param("apple", {}, "apple needs models or other state", marks=pytest.mark.thorough),
        pytest.param("spfl", {}, "spfl needs ", marks=pytest.mark.thorough),
        ("cwfedavg", {}, "cwfedavg needs models or other state"),
        ("local", {}, "local needs models or other state"),
        ("fedala", {}, "fedala needs "),
        ("fedavg", {"participation": 1.0}, "these are all clients: take a participation below 1"),
    ],
)
def test_what_needs_all_clients_is_refused_before_anything_is_compiled(name, options, said):
    with pytest.raises(pfl.InputError, match=said):
        request.checked_program(pfl.make_algorithm(name), federation("host", **options))


def test_a_program_that_reads_others_rows_is_known():
    """And no plan is made of it: other tests run programs that do not read."""
    program = request.checked_program(pfl.make_algorithm("fedamp"), federation("host"))
    assert program.reads
    with pytest.raises(pfl.InputError, match="A plan does not count the models of other clients"):
        program.lowered(jax.devices()[:1])


def test_processes_do_not_read_others_rows(monkeypatch):
    monkeypatch.setattr(programs, "several", lambda: True)
    with pytest.raises(pfl.InputError, match="fedamp needs models or other state"):
        request.checked_program(pfl.make_algorithm("fedamp"), federation("host", devices=2))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["clients:2", "runs:2"])
@pytest.mark.parametrize("name", ["fedamp", "fedfomo"])
def test_devices_of_a_mesh_read_others_rows(name, mesh):
    """Each of two runs its own, also where it has a device of its own."""
    expected, result = (
        run(name, "device", CASES[name]),
        run(name, "host", CASES[name] | {"mesh": mesh}),
    )
    assert result.final.states.store.written.any()
    assert_same(expected, result, 1e-5)


def test_each_run_reads_its_own_rows():
    first = [np.zeros((2, 1, 3), np.float32), np.zeros((2, 1), np.int16)]
    store = HostStore(first, 6, 6)
    everyone = np.broadcast_to(np.arange(6), (2, 6))
    wide = np.arange(36, dtype=np.float32).reshape(2, 6, 3)
    store.put(everyone[:, 1:], [wide[:, 1:], np.zeros((2, 5), np.int16)])
    shapes = [jax.ShapeDtypeStruct((2, 3), jnp.float32)]

    @jax.jit
    def read(at, rows):
        return jax.vmap(lambda at: host_reads.Reader(at, mesh_of(1))((0,), shapes, rows)[0])(at)

    at = host_reads.address(store, 2)
    assert host_reads.address(store, 2).store[0] == at.store[0]
    found = read(at, jnp.array([0, 4], jnp.int32))
    np.testing.assert_array_equal(found, np.stack([0 * wide[:, 0], wide[:, 4]], axis=1))


@pytest.mark.parametrize(
    "options",
    [
        {"keep_optimizer_state": True, "momentum": 0.5},
        {"extra_loss": pfl.WeightDistribution(0.1)},
    ],
)
def test_rounds_traced_beforehand_may_read_samples_on_the_host(options):
    program = request.checked_program(pfl.make_algorithm("fedper"), federation("host", **options))
    assert any(program.layout.hosted)


def test_auto_moves_state_to_the_host_where_it_does_not_fit(monkeypatch):
    many = {"train_sizes": [4] * 40, "test_sizes": [1] * 40, "participation": 0.05}
    program = request.checked_program(pfl.make_algorithm("ditto"), federation("auto", **many))
    needs = program.memory().total
    assert type(fitting(program, needs)[0]) is type(program)
    with pytest.warns(UserWarning, match="ditto keeps clients' state in host memory"):
        moved, estimate = fitting(program, needs - 1)
    assert isinstance(moved, hosted.HostedProgram)
    assert estimate.total < needs
    used_up = []

    def peak(jaxpr, owned, *_):
        used_up.append(bool(owned))
        return 0

    monkeypatch.setattr(host_needs, "peak", peak)
    moved.memory()
    assert used_up == [True, False]  # a round uses its rows up, scoring does not
    asked = federation("device", **many)
    with pytest.raises(pfl.InputError, match="would take about"):
        fitting(request.checked_program(pfl.make_algorithm("ditto"), asked), needs - 1)


def test_rows_are_what_was_written_last_and_at_first_what_all_have(tmp_path):
    first = [np.arange(12.0).reshape(2, 1, 6), np.arange(20, dtype=np.int16).reshape(2, 10, 1)]
    rows = np.array([[1, 4, 7], [0, 4, 9]])
    rng = np.random.default_rng(0)
    for limit in (0, 1e9):  # in a file, in memory
        store = HostStore(first, 10, 6, tmp_path, limit)
        expected = [np.broadcast_to(leaf, (2, 10, *leaf.shape[2:])).copy() for leaf in first]
        for at in (rows, rows[:, :2] + 1):
            values = [rng.normal(size=(*at.shape, 6)), rng.integers(99, size=(*at.shape, 1))]
            values[1] = values[1].astype(np.int16)
            store.put(at, values)
            for leaf, value in zip(expected, values, strict=True):
                leaf[np.arange(2)[:, None], at] = value
        everyone = np.broadcast_to(np.arange(10), (2, 10))
        for got, leaf in zip(store.take(everyone), expected, strict=True):
            np.testing.assert_array_equal(got, leaf)
        assert store.saved()[0].tolist() == [0, 1, 2, 4, 5, 7, 9]
    assert not list(tmp_path.iterdir())  # the file has no name


def test_a_store_has_its_own_clients_rows_and_zeros_for_others(tmp_path):
    first, own = [np.full((1, 1, 2), 5.0)], np.array([True, True, False, False])
    for limit in (0, 1e9):  # in a file, in memory
        store = HostStore(first, 4, 9, tmp_path, limit, own)
        store.put(np.array([[3, 1]]), [np.array([[[3.0, 3], [1, 1]]])])
        assert store.touched.tolist() == [1, 3]  # as all processes know
        assert store.in_file == (limit == 0)
        (rows,) = store.take(np.array([[0, 1, 2, 3]]))
        assert rows[0, :, 0].tolist() == [5, 1, 0, 0]


def test_rows_of_all_processes_are_collected_in_pieces(tmp_path, monkeypatch):
    """By one process, which has all of them."""
    monkeypatch.setattr(host_shares, "PIECE", 32)  # two clients' rows of two runs
    first = [np.zeros((2, 1, 2), np.float32)]
    store = host_shares.SharedStore(first, 7, 9, tmp_path / "not there", 1e9)
    rows = np.array([[5, 1, 3], [5, 6, 0]])
    store.put(rows, [np.arange(12, dtype=np.float32).reshape(2, 3, 2) - 3])
    touched, (found,) = store.saved()
    wanted, (expected,) = HostStore.saved(store)
    assert touched.tolist() == wanted.tolist() == [0, 1, 3, 5, 6]
    np.testing.assert_array_equal(found, expected)


def test_rows_of_a_whole_state_that_are_as_at_first_are_not_written():
    """Of 250 clients, more than are looked at once; each run has its own first rows."""
    first = [np.array([0.0, np.nan]).reshape(2, 1, 1), np.arange(500.0).reshape(2, 250, 1)]
    leaves = [np.broadcast_to(leaf, (2, 250, 1)).copy() for leaf in first]
    leaves[0][0, 3] = -0.0
    leaves[1][1, [99, 100, 249]] = -1
    store = HostStore(first, 250, 10)
    store.put_changed(leaves)
    assert store.saved()[0].tolist() == [3, 99, 100, 249]
    everyone = np.broadcast_to(np.arange(250), (2, 250))
    for got, leaf in zip(store.take(everyone), leaves, strict=True):
        assert got.tobytes() == leaf.tobytes()


def test_a_file_may_be_larger_than_an_int32_counts(tmp_path):
    first = [np.broadcast_to(np.zeros(1, np.uint8), (1, 1, 2**20))]
    store, at = HostStore(first, 5000, 1, tmp_path, 0), np.array([[4999]], np.int32)
    store.put(at, [np.full((1, 1, 2**20), 7, np.uint8)])
    np.testing.assert_array_equal(store.take(at)[0], 7)


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    first = [np.zeros((1, 1, 6))]
    much = np.broadcast_to(np.zeros(1), (1, 1, 2**45))  # takes no memory
    with pytest.raises(pfl.OutputError, match=r"may take .* in a file in .* are free"):
        HostStore([much], 1000, 1000, tmp_path, 0)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = HostStore(first, 10, 6, tmp_path, 0)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(pfl.OutputError, match=r"can't be written to .*: No space left on device"):
        store.put(np.array([[3]]), [np.ones((1, 1, 6))])
    assert not store.written.any()


def test_equal_first_rows_stay_one():
    def begin(x):
        model = {"a": x * 2, "b": jnp.zeros(3)}
        alike = trees.replicate(model, 7)
        return alike, jnp.arange(7.0)[:, None] * x, jnp.full((7, 2), 5).astype(jnp.int16)

    given = jnp.arange(4.0)
    short = with_first_rows(begin, 7)(given)
    assert [len(leaf) for leaf in short] == [1, 1, 7, 1]
    for leaf, expected in zip(short, jax.tree.leaves(begin(given)), strict=True):
        assert leaf.dtype == expected.dtype
        np.testing.assert_array_equal(jnp.broadcast_to(leaf, expected.shape), expected)


def test_a_cohorts_samples_are_its_own():
    data = federation("host").data
    cut = HostData(data).of(np.array([3, 0, 3]), ("train",), 2)
    assert len(cut.samples) == 17 < len(data.samples)
    for row in (0, 3):
        for at in range(int(data.train.size[row])):
            mine, all_of_them = (
                one.fetch(one.train, row, jnp.array([at]), jnp.array([True]), "float32")
                for one in (cut, data)
            )
            jax.tree.map(np.testing.assert_array_equal, mine, all_of_them)
    with pytest.raises(trees.NotHere):
        replace(cut, there=jnp.array([0, 3])).check_there(jnp.array([0, 3]))


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
    made = federation("host", validation_size=1)
    data, rows, given = made.data, np.array([4, 0, 3]), []
    monkeypatch.setattr(combining, "count", lambda: 2)
    for module in (at_home, spreading):
        monkeypatch.setattr(module, "several", lambda: True)
    for number in range(2):
        monkeypatch.setattr(combining, "index", lambda number=number: number)
        held = spread(made).data
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
    made = federation("host", devices=2, validation_size=1)
    parts = on_mesh(made, mesh_of(2)).data
    assert parts.shards == 2
    monkeypatch.setattr(at_home, "several", lambda: True)
    held = at_home.at_home(parts)
    assert held.own.all() and held.shards == held.train.shards == 1
    assert isinstance(held.samples, np.ndarray)
    assert held.content() == made.data.content()
    same_samples(
        HostData(held).of(np.arange(5), ("train", "validation", "test"), 5), made.data, range(5)
    )
    same_samples(at_home.whole(held), made.data, range(5))


@pytest.mark.parametrize(
    "use", [jnp.mean, lambda x: x[0], lambda x: x + 1, lambda x: x == 1, bool, list, np.asarray]
)
def test_nothing_is_computed_from_some_rows_in_place_of_all(use):
    rows = jnp.array([1, 2])
    leaf = trees.Fetched(jnp.ones((2, 3)), rows, 5)
    with pytest.raises((trees.NotHere, TypeError), match="Fetched"):
        use(leaf)
    np.testing.assert_array_equal(trees.take(leaf, rows), np.ones((2, 3)))
    assert trees.put(leaf, rows, jnp.zeros((2, 3))).shape == (5, 3)
