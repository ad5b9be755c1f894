"""Local training against its reference."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.checks import CHECKS
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import LATE_PATTERNS, Case, assert_models, assert_steps
from tests.references import local

SAMPLED = {"participants": "sampled"}


def cohorts(one):
    every = one.settings.get("participants", "all") == "all"
    return {"cohorts": one.case.everyone if every else one.case.cohorts}


def assert_record(now):
    cohort = now.batches("cohorts")
    assert_steps(now.record, cohort, now.batches())
    assert np.flatnonzero(now.clients["participated"]).tolist() == sorted(cohort)


test_reference, test_contract = comparison(
    "local",
    local.run,
    variants={"all": {}, "sampled": SAMPLED},
    ours=("participants",),
    given=cohorts,
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    steps=(),
    copies=0,
    check=assert_record,
)


@pytest.mark.costly
@pytest.mark.parametrize("check", CHECKS)
def test_contract_of_sampled_participants(check):
    CHECKS[check](pfl.make_algorithm("local", SAMPLED))


@pytest.mark.costly
def test_sampled_late_clients():
    """Without a server nothing arrives late: they train in their punctual rounds alone."""
    case = Case(**LATE_PATTERNS["code-map"])
    states = case.states_of(pfl.make_algorithm("local", SAMPLED))
    for state, models in zip(states[1:], local.run(case.setting()), strict=True):
        assert_models(state.models, models["personalized"], "personalized")
