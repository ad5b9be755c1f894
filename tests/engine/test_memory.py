"""Memory of simulations: by arithmetic, by the compiler's plan, and what is refused."""

from dataclasses import replace
from unittest import mock

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.compiled import advance
from fedjax_pfl.engine.host_program import HostProgram
from fedjax_pfl.engine.memory import Memory, available
from fedjax_pfl.engine.memory_fit import fit_memory
from fedjax_pfl.engine.program import Program
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.testing.toys import count_compilations, toy_federation


def program_of(name="local", execution=None, **options):
    federation = toy_federation(dtype="float32", validation_size=0, **options)
    if execution is not None:
        federation = replace(federation, execution=execution)
    return checked_program(pfl.make_algorithm(name), federation, 4, chunk=2)


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.costly)])
def test_data_and_states_are_arithmetic(devices):
    program = program_of(train_sizes=[4] * 6, devices=devices)
    held = program.held()
    parameters = program.federation.plan.num_parameters
    assert held.state == 6 * parameters * 4  # each once, wherever it is
    arrays = jax.tree.leaves(program.federation)
    assert held.data == devices * sum(np.asarray(jax.device_get(x)).nbytes for x in arrays)
    assert held.working == 0 and program.memory().data == held.data


@pytest.mark.costly
@pytest.mark.parametrize("devices", [1, 2])
def test_working_memory_is_what_the_compiler_plans(devices):
    program = program_of("feddwa", train_sizes=[4] * 12, devices=devices, model=MLP(3, (40_000,)))
    working = program.memory().working
    model = 4 * program.federation.plan.num_parameters
    # Trained, guidance and mixed models, which each device gathers.
    assert 2 * 12 * model < working < devices * 8 * 12 * model
    states = program.start()
    compiled = advance.lower(*program._operands(states, 0, 0), **program._options).compile()
    plan = compiled.memory_analysis()
    temporaries = devices * plan.temp_size_in_bytes  # the states' buffers are used again
    assert temporaries <= working < temporaries + model


@pytest.mark.costly
def test_state_on_the_host_is_twice_that_of_a_block_of_clients():
    """One is scored while the next one comes."""
    many = {"train_sizes": [4] * 150, "participation": 0.02, "model": MLP(3, (3000,))}
    program = program_of("ditto", **many, client_state="host")
    model = 4 * program.federation.plan.num_parameters
    models = 1 + 2 * program.width  # the server's, and one of each client
    assert 0 <= program.held().state - models * model < model / 2
    assert 0 < program.memory().working < program.width * model  # its rows are in the state


@pytest.mark.costly
@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({}, 1),
        ({"devices": 2, "train_sizes": [4] * 5}, 1),  # padded
        ({"client_state": "host", "participation": 0.4, "devices": 2}, 2),
    ],
)
def test_estimate_memory_compiles_the_programs_of_the_run(options, rounds):
    """Those of its rounds, and with state on the host of scoring."""
    federation = toy_federation(**{"train_sizes": [4] * 6, "dtype": "float32"} | options)
    simulation = pfl.Simulation(pfl.make_algorithm("ditto"), federation, seeds=(0, 1))
    with count_compilations() as before:
        simulation.estimate_memory(fit=True)
    assert len(before) == rounds
    with count_compilations() as after:
        simulation.run(3)
    assert len(after) == rounds  # the first states; on the host also each round's cohort


@pytest.mark.costly
def test_what_cannot_fit_is_refused_before_it_is_compiled():
    program, program_of_seven = program_of(), program_of(train_sizes=[4] * 7)
    held = program.held().total
    with (
        count_compilations() as compiled,
        pytest.raises(pfl.InputError, match=r"local with 5 clients of .* would take at least"),
    ):
        fit_memory(program, held - 1)
    assert not compiled
    with pytest.raises(pfl.InputError, match=r"would take about .* a round's working memory"):
        fit_memory(program, held)
    assert type(fit_memory(program, 10**9)) is Program
    with count_compilations() as compiled:
        fit_memory(program_of_seven, None)  # of no known limit
    assert not compiled


def test_memory_is_checked_without_compiling(monkeypatch):
    ditto = pfl.make_algorithm("ditto")
    options = {"train_sizes": [4] * 150, "participation": 0.05, "dtype": "float32"}
    device, auto = (
        toy_federation(**options, model=MLP(3, (3000,)), client_state=state)
        for state in ("device", "auto")
    )
    held = checked_program(ditto, device).held().total

    def check(federation, limit):
        monkeypatch.setattr("fedjax_pfl.engine.memory_fit.available", lambda _: limit)
        with count_compilations() as compiled:
            pfl.Simulation(ditto, federation).check_memory()
        assert not compiled

    check(device, None)
    check(device, held)
    check(auto, held - 1)
    for federation, limit in ((device, held - 1), (auto, 1000)):
        with pytest.raises(pfl.InputError, match="would take at least"):
            check(federation, limit)


@pytest.mark.costly
def test_lanes_are_halved_where_they_are_automatic():
    options = {"train_sizes": [60] * 8, "model": MLP(3, (3000,))}
    programs = {
        max_lanes: program_of("fedavg", Execution(max_lanes, "map", auto=True), **options)
        for max_lanes in (0, 4, 2, 1)
    }
    needs = {lanes: program.memory().total for lanes, program in programs.items()}
    whole = programs[0]
    assert needs[0] > needs[4] > needs[2] > needs[1]
    for limit, lanes in ((needs[0], 0), (needs[0] - 1, 4), (needs[4] - 1, 2), (needs[1], 1)):
        assert fit_memory(whole, limit).federation.execution.max_lanes == lanes
    with pytest.raises(pfl.InputError, match=r": take fewer clients or a smaller model\.$"):
        fit_memory(whole, needs[1] - 1)  # one after the other already
    asked = program_of("fedavg", Execution(0, "map"), **options)
    with pytest.raises(pfl.InputError, match="client_execution='map'"):
        fit_memory(asked, needs[4])


@pytest.mark.costly
@pytest.mark.parametrize("said", ["RESOURCE_EXHAUSTED: 23G exceeds 15G\nmore", "INTERNAL: no"])
def test_compilers_of_accelerators_may_refuse(said, monkeypatch):
    """As they do if lanes are too many; what else they say is no lack of memory."""
    plan = Program.memory

    def memory(self):
        if self.federation.execution.lanes(5) > 1:
            raise jax.errors.JaxRuntimeError(said)
        return plan(self)

    monkeypatch.setattr(Program, "memory", memory)
    auto, asked = (
        program_of("fedavg", Execution(0, "map", auto=auto, platform="gpu"))
        for auto in (True, False)
    )
    if said.startswith("INTERNAL"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
            fit_memory(auto, 10**9)
        return
    assert fit_memory(auto, 10**9).federation.execution.max_lanes == 1
    with pytest.raises(pfl.InputError, match=r"more than a device has \(.*15G\), but there are"):
        fit_memory(asked, 10**9)


@pytest.mark.costly
def test_state_moves_to_the_host_where_it_does_not_fit():
    many = {"train_sizes": [4] * 150, "participation": 0.02, "model": MLP(3, (3000,))}
    program = program_of("ditto", **many, client_state="auto")
    needs, held = program.memory().total, program.held().total
    assert type(fit_memory(program, needs)) is Program
    for limit in (needs - 1, held - 1):  # by the plan, and before compiling
        with pytest.warns(UserWarning, match="ditto keeps clients' state in host memory"):
            moved = fit_memory(program, limit)
        assert isinstance(moved, HostProgram)
        assert moved.memory().total <= limit
    asked = program_of("ditto", **many, client_state="device")
    with pytest.raises(pfl.InputError, match="would take about"):
        fit_memory(asked, needs - 1)


class Accelerator:
    """A device of 1,000 bytes."""

    def memory_stats(self):
        return {"bytes_limit": 1000}


def test_devices_have_their_memory_together():
    with mock.patch("jax.local_devices", return_value=[Accelerator()] * 4):
        assert [available(devices) for devices in (1, 3)] == [1000, 3000]
    assert available(1) == available(2) > 10**8  # a CPU's devices share it


def test_memory_in_words():
    text = str(Memory(data=2_000_000, state=3_000_000_000, working=500_000_000))
    assert text == "3.50 GB (data 2.0 MB, state 3.00 GB, a round's working memory 0.50 GB)"
