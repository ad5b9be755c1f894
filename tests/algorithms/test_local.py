"""Local training against its reference."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"arrivals": {1: 2}}, []),
        ({"participation": 0.6}, ["all clients train in every round, drawn or not"]),
        (
            {"arrivals": {1: 2}, "participation": 0.6},
            ["all clients that are there train in every round, drawn or not"],
        ),
    ],
)
def test_who_trains_is_said_where_clients_are_drawn(options, said):
    federation = toy_federation(dtype="float32", **options)
    assert pfl.make_algorithm("local").remarks(federation) == said
