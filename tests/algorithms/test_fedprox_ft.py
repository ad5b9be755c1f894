"""FedProx with fine-tuning against its reference, and its limits."""

from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_steps, over
from tests.references import fedprox_ft

# Settings of the algorithm, and the reference's.
VARIANTS = {
    "epochs": ({}, {}),
    "final-only": (
        {"fine_tune_epochs": 2, "final_only": True, "fine_tune_proximal_weight": 0.4},
        {"tuning_budget": (2, 4), "tuning_proximal_weight": 0.4},
    ),
}


def algorithm(**settings):
    return pfl.make_algorithm("fedprox_ft", settings)


@over(PATTERNS, [("partial-map", "epochs"), ("full-vmap", "final-only")], VARIANTS)
def test_reference(pattern, variant):
    """Copies follow the loss alone: the term of training is none of theirs."""
    case, (settings, tuning) = Case(**PATTERNS[pattern] | {"scored": True}), VARIANTS[variant]
    batches, epochs = case.batches(), settings.get("fine_tune_epochs", 1)
    wanted = fedprox_ft.run(
        case.initial(),
        case.clients(),
        3,
        **case.common(batches=batches),
        proximal_weight=0.7,
        tuning_batches=case.batches("adapt", replace(case.federation.schedule, epochs=epochs)),
        **tuning,
    )
    states, records = case.run_rounds(algorithm(proximal_weight=0.7, **settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_steps(record, case.cohorts[t], batches[t])  # fine-tuning is not part of a round
        case.assert_whole_models(record, t)
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
        if "personalized" in models:
            assert_losses(record, case, "personalized", models["personalized"])
        else:
            assert np.isnan(record["scores"]["personalized/test/loss"]).all()
    assert "personalized" in wanted[-1] and ("personalized" in wanted[0]) == (not settings)


@pytest.mark.thorough
def test_without_the_term_it_is_fedavg_ft_to_the_bit():
    case = Case(**PATTERNS["partial-map"])  # the program of the comparison
    states, records = case.run_rounds(algorithm(proximal_weight=0))
    other = pfl.make_algorithm("fedavg_ft")
    wanted, scored = case.run_rounds(other)
    assert_close(states[-1].server, wanted[-1].server, "server", 0)
    for record, alike in zip(records, scored, strict=True):
        assert_close(record["scores"], alike["scores"], "scores", 0)


@pytest.mark.slow
def test_without_fine_tuning_it_is_fedprox_to_the_bit():
    federation = toy_federation(participation=0.6)
    states, records = run_rounds(algorithm(proximal_weight=0.7, fine_tune_epochs=0), federation)
    wanted, scored = run_rounds(pfl.make_algorithm("fedprox", {"proximal_weight": 0.7}), federation)
    assert_close(states[-1].server, wanted[-1].server, "server", 0)
    for record, other in zip(records, scored, strict=True):
        for name, values in other["scores"].items():
            np.testing.assert_array_equal(record["scores"][name], values, name)


def test_readers_of_a_table_are_told():
    federation = toy_federation()
    assert algorithm().remarks(federation) == ["scored after 1 local epoch on a copy"]
    (told,) = algorithm(final_only=True).remarks(federation)
    assert told.endswith("on a copy, after the last round only")
