"""SCAFFOLD against its reference, and what its controls must satisfy."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import assert_close
from tests.algorithms.harness import PATTERNS, QUICK, Case, assert_losses, stack
from tests.reference import scaffold


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "pattern", [pytest.param(p, marks=() if p in QUICK else pytest.mark.slow) for p in PATTERNS]
)
def test_reference(pattern):
    case = Case(**PATTERNS[pattern])
    wanted = scaffold.run(case.initial(), case.clients(), 3, **case.common(), server_rate=0.7)
    states, records = case.play(pfl.make_method("scaffold", {"server_rate": 0.7}))
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_close(state.server["params"], models["global"], "global")
        assert_close(state.control, models["control"], "control")
        assert_close(state.controls, stack(models["controls"])["params"], "controls")
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
        assert set(np.unique(record["up"])) <= {0, 2}
        assert set(np.unique(record["down"])) <= {0, 2}


def test_the_servers_control_is_the_mean_of_the_clients():
    # From zero, and for any sampling: c moves by the changes over N, not over the cohort.
    states, _ = Case(participation_fraction=0.6).play(pfl.make_method("scaffold"))
    for state in states:
        mean = jax.tree.map(lambda leaf: leaf.mean(0), state.controls)
        assert_close(state.control, mean, "control")
    assert max(abs(leaf).max() for leaf in jax.tree.leaves(states[-1].control)) > 1e-3
