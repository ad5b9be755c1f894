"""FedAvgM against its reference, and the server optimizer of FedAvg's rounds."""

from dataclasses import fields

import jax
import pytest

from fedjax_pfl.core.algorithm_registry import is_static
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import fedavgm

algorithm = maker("fedavgm")


def check_velocity(now):
    assert_close(now.state.optimizer[0].trace, now.wanted["velocity"], "velocity")
    now.assert_mean()


test_reference, test_contract = comparison(
    "fedavgm",
    fedavgm.run,
    variants={
        "nesterov": {"server_rate": 0.7},  # as it is unless told
        "plain": {"nesterov": False, "server_momentum": 0.5},
    },
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    check=check_velocity,
)


@pytest.mark.costly
def test_private_layers_have_no_momentum():
    federation = toy_federation(share="body", participation=0.6)
    last = states_of(algorithm(), federation, 2)[-1]
    trace = last.optimizer[0].trace
    assert not jax.tree.leaves(trace["head"]) and jax.tree.leaves(trace["fc_0"])


def test_hyperparameters_that_can_be_swept():
    assert {f.name for f in fields(algorithm()) if is_static(f)} == {"nesterov"}
