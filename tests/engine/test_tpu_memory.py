"""Lanes whose local step stays in the memory on a TPU's chip; nothing is compiled."""

from dataclasses import replace

import jax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import tpu_memory
from fedjax_pfl.engine.memory_fit import fit_memory
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.testing.toys import toy_federation

MIB = 2**20


@pytest.mark.parametrize(
    ("lanes", "model", "activations", "kept"),
    [
        (27, 5 * MIB, 2 * MIB, 27),  # 1.5 times the room is enough for all
        (28, 5 * MIB, 2 * MIB, 14),  # two turns, though activations alone fit
        (64, 5 * MIB, 2 * MIB, 16),
        (100, 5 * MIB, 2 * MIB, 17),  # six turns
        (100, 4 * MIB, 2 * MIB, 20),  # 21 fit: five turns of 20 waste none
        (1000, MIB, MIB // 16, 112),
        (100, 0, 2 * MIB, 50),
        (20, 90 * MIB, 150 * MIB, 2),  # not even one fits
        (20, 90 * MIB, 2 * MIB, 20),  # but activations do
        (3, 0, 60 * MIB, 2),
        (1, 0, 500 * MIB, 1),
    ],
)
def test_lanes_are_even_shares_that_fit(lanes, model, activations, kept):
    assert tpu_memory.lanes_on_chip(lanes, model, activations, 128 * MIB) == kept


@pytest.mark.parametrize(("lanes", "kept"), [(7, 7), (8, 4), (20, 5), (100, 5)])
def test_lanes_of_the_cnn(lanes, kept):
    """As docs/engineering_log.md has them: five at a time have room for their padded images too."""
    sizes = 4_656_212, 1_486_394  # bytes of a lane with minibatches of 10
    assert tpu_memory.lanes_on_chip(lanes, *sizes, tpu_memory.ON_CHIP_BYTES["tpu"]) == kept


def test_few_steps_do_not_pay_for_turns():
    lanes, sizes = 40, (5 * MIB, 2 * MIB)
    few = tpu_memory.MIN_STEPS - 1
    assert tpu_memory.lanes_on_chip(lanes, *sizes, 128 * MIB, few) == lanes
    assert tpu_memory.lanes_on_chip(lanes, *sizes, 128 * MIB, few + 1) < lanes
    assert tpu_memory.lanes_on_chip(100, *sizes, 128 * MIB, few) == 17  # activations do not fit


def test_a_step_is_counted_once_for_a_client():
    federation = toy_federation([60] * 8, dtype="float32", model=MLP(3, (300, 300)))
    params = jax.eval_shape(federation.initial_model, jax.random.key(0))["params"]
    size = 4 * sum(leaf.size for leaf in jax.tree.leaves(params))
    model, activations = tpu_memory.step_bytes(federation)
    assert 2 * size <= model < 2 * size + 1000  # weights and gradients
    hidden = 4 * 300 * federation.schedule.fitting(60).batch_size  # of one layer; no weights
    assert 2 * hidden <= activations < 8 * hidden < size / 4


@pytest.mark.parametrize(
    ("execution", "chunk"),
    [
        (Execution(0, "map", auto=True, platform="tpu"), 4),
        (Execution(0, "vmap", auto=True, platform="tpu"), 2),  # two runs beside the clients
        (Execution(0, "map", platform="tpu"), 0),  # asked for
        (Execution(0, "map", auto=True, platform="gpu"), 0),
        (Execution(1, "map", auto=True), 1),
    ],
)
def test_auto_keeps_a_step_on_the_chip_of_a_tpu(execution, chunk, monkeypatch):
    federation = toy_federation([60] * 8, dtype="float32", model=MLP(3, (3000,)), validation_size=0)
    algorithm = pfl.make_algorithm("fedavg")
    model, activations = tpu_memory.step_bytes(federation)
    monkeypatch.setattr(tpu_memory, "step_bytes", lambda _: (model, 6 * activations))
    monkeypatch.setitem(tpu_memory.ON_CHIP_BYTES, "tpu", 5 * (model + 6 * activations))
    federation = replace(federation, execution=execution)
    program = Program(make_runs(algorithm, federation, (0, 1)), federation, rounds=4, capacity=2)
    assert fit_memory(program, None).federation.execution.max_lanes == chunk
