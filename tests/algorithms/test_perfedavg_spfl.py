"""The SPFL paper's Per-FedAvg against its reference."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_steps,
    over,
    sampled_federation,
)
from tests.references import perfedavg_spfl


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@over(PATTERNS, [("partial-map", 2), ("full-vmap", 3)], (2, 3))
def test_reference(pattern, variant):
    """Two steps on a minibatch unless told."""
    case, settings = Case(**PATTERNS[pattern]), {} if variant == 2 else {"local_updates": variant}
    common = case.common()
    wanted = perfedavg_spfl.run(case.initial(), case.clients(), 3, **common, steps=variant)
    states, records = case.run_rounds(pfl.make_algorithm("perfedavg_spfl", settings))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        everywhere = [models["global"]] * case.num_clients
        assert_losses(record, case, "global", everywhere)
        assert_losses(record, case, "personalized", everywhere)
        assert set(np.unique(record["up"])) <= {0, 1}
        assert_steps(record, case.cohorts[t], *variant * [common["batches"][t]])


def test_one_step_is_fedavg():
    federation = sampled_federation()
    single = states_of(pfl.make_algorithm("perfedavg_spfl", {"local_updates": 1}), federation)
    plain, _ = run_rounds(pfl.make_algorithm("fedavg"), federation)
    assert_close(single[-1].server, plain[-1].server, "one step")
