"""Local training against its reference."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from tests.algorithms.harness import (
    LATE_PATTERNS,
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.references import local


@over(PATTERNS, [("partial-map", "all"), ("full-vmap", "all"), ("partial-map", "sampled")],
      ("all", "sampled"))  # fmt: skip
def test_local(pattern, variant):
    case = Case(**PATTERNS[pattern])
    cohorts = case.everyone if variant == "all" else case.cohorts
    wanted = local.run(case.initial(), case.clients(), 3, **case.common(cohorts=cohorts))
    states, records = case.run_rounds(pfl.make_algorithm("local", {"participants": variant}))
    rounds = zip(states[1:], records, wanted, cohorts, case.batches(), strict=True)
    for state, record, models, cohort, batches in rounds:
        assert_models(state.models, models["personalized"], "personalized")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, cohort, batches)
        assert np.flatnonzero(record["clients"]["participated"]).tolist() == sorted(cohort)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["code-map", "paper-vmap"])
def test_local_of_the_drawn_with_late_clients(pattern):
    """Without a server nothing arrives late: they train in their punctual rounds alone."""
    case = Case(**LATE_PATTERNS[pattern])
    wanted = local.run(case.initial(), case.clients(), 3, **case.common())
    states = case.states_of(pfl.make_algorithm("local", {"participants": "sampled"}))
    for state, models in zip(states[1:], wanted, strict=True):
        assert_models(state.models, models["personalized"], "personalized")
