"""FedAvgM against its reference, its limits, and the server optimizer of FedAvg's rounds."""

from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.core.algorithm_registry import is_static
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.utils.structs import struct
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_steps,
    over,
    sampled_federation,
)
from tests.models.test_normalization import NormNet
from tests.references import fedavgm

VARIANTS = {
    "nesterov": {"server_rate": 0.7},  # as it is unless told
    "plain": {"nesterov": False, "server_momentum": 0.5},
}


def algorithm(**settings):
    return pfl.make_algorithm("fedavgm", settings)


@over(PATTERNS, [("partial-map", "nesterov"), ("full-vmap", "plain")], tuple(VARIANTS))
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    common = case.common()
    wanted = fedavgm.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        state, everywhere = states[t + 1], [models["global"]] * case.num_clients
        assert_close(state.server["params"], models["global"], "global")
        assert_close(state.optimizer[0].trace, models["velocity"], "velocity")
        for name in ("global", "personalized"):
            assert_losses(record, case, name, everywhere)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_mean(record, t)
        case.assert_whole_models(record, t)


@struct
class Stepping(FedAvg):
    """FedAvg whose server takes the whole step by an optimizer."""

    name = "stepping"

    def server_optimizer(self):
        return optax.sgd(1.0)


@struct
class Adaptive(FedAvg):
    """FedAvg with Adam on the server; its state holds a count too."""

    name = "adaptive"

    def server_optimizer(self):
        return optax.adam(0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_momentum_and_the_whole_step_are_fedavg_to_the_bit(dtype):
    federation = sampled_federation(dtype=dtype)
    states, records = run_rounds(FedAvg(), federation)
    assert not jax.tree.leaves(states[0].optimizer)
    for other in (algorithm(server_momentum=0), Stepping()):
        found, scored = run_rounds(other, federation)
        for state, wanted in zip(found, states, strict=True):
            assert_close(state.server, wanted.server, f"server, {other.name} against fedavg", 0)
        for record, wanted in zip(scored, records, strict=True):
            assert_close(record["scores"], wanted["scores"], f"scores, {other.name}", 0)


@pytest.mark.thorough
def test_any_optimizer_steps_along_what_the_average_is_away():
    federation = toy_federation(model=NormNet())
    _, averaged = states_of(FedAvg(), federation, 1)
    start, after = states_of(Adaptive(), federation, 1)
    params = start.server["params"]
    away = jax.tree.map(jnp.subtract, params, averaged.server["params"])
    optimizer = optax.adam(0.05)
    step, memory = optimizer.update(away, optimizer.init(params), params)
    assert_close(after.server["params"], optax.apply_updates(params, step), "Adam's step")
    assert_close(after.optimizer, memory, "Adam's state")
    # Running statistics are averaged: an optimizer's step could make a variance negative.
    assert_close(after.server["batch_stats"], averaged.server["batch_stats"], "statistics", 0)


@pytest.mark.thorough
def test_rounds_in_which_nobody_arrives_leave_the_model_and_the_momentum():
    late = dict.fromkeys(range(5), 1)  # on time in every third round alone
    states = states_of(algorithm(), toy_federation(stragglers=late), 5)
    for still in (0, 1, 3, 4):
        assert_close(states[still + 1], states[still], f"round {still + 1}", 0)
    moved = jax.tree.map(lambda a, b: (a != b).any(), states[3].server, states[2].server)
    assert all(jax.tree.leaves(moved))
    assert any(leaf.any() for leaf in jax.tree.leaves(states[3].optimizer))


@pytest.mark.thorough
def test_private_layers_have_no_momentum():
    federation = toy_federation(share="body", participation=0.6)
    (first, second, third), records = run_rounds(
        algorithm(server_momentum=0.9, server_rate=0.7), federation, 2
    )
    trace = third.optimizer[0].trace
    assert not jax.tree.leaves(trace["head"]) and jax.tree.leaves(trace["fc_0"])
    wanted, scored = run_rounds(
        FedAvg(), federation, 1
    )  # the first step is 1.9 times the average's
    stepped = jax.tree.map(
        lambda w, m: w + 0.7 * 1.9 * (m - w), first.server["params"], wanted[1].server["params"]
    )
    assert_close(second.server["params"], stepped, "body")
    assert_close(second.private, wanted[1].private, "heads", 0)
    assert set(records[0]["scores"]) == set(scored[0]["scores"])


def test_numbers_that_can_be_swept():
    assert {f.name for f in fields(algorithm()) if is_static(f)} == {"nesterov"}


@pytest.mark.slow
def test_rates_and_momentum_are_swept_in_one_program():
    settings = {"server_momentum": (0.0, 0.5), "server_rate": (1.0, 0.7)}
    swept = pfl.simulate(algorithm(), toy_federation(), 2, settings=settings)
    plain = pfl.simulate(FedAvg(), toy_federation(), 2)
    name = "global/test/loss"
    np.testing.assert_allclose(swept.scores[name][0, 0], plain.scores[name][0, 0], 1e-9)
    assert abs(swept.scores[name][0, 1, -1] - plain.scores[name][0, 0, -1])[:4].min() > 1e-4
