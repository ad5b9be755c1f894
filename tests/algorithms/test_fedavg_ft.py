"""FedAvg with fine-tuning against its reference."""

from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from tests.algorithms.harness import PATTERNS, Case, assert_losses, over
from tests.references import fedavg_ft


@over(PATTERNS, ["partial-map"])
def test_fedavg_ft(pattern):
    case = Case(**PATTERNS[pattern] | {"scored": True})  # fine-tuned models are only scored
    tuning = replace(case.federation.schedule, epochs=2)
    wanted = fedavg_ft.run(
        case.initial(),
        case.clients(),
        3,
        **case.common(),
        tuning_batches=case.batches("adapt", tuning),
    )
    _, records = case.run_rounds(pfl.make_algorithm("fedavg_ft", {"fine_tune_epochs": 2}))
    for record, models in zip(records, wanted, strict=True):
        case.assert_two_models(record, models)


@pytest.mark.thorough
def test_fedavg_ft_after_the_last_round():
    """Once after the last round, a number of minibatches of each client, near the server's."""
    case = Case(participation=0.6)
    schedule = replace(case.federation.schedule, epochs=2)
    wanted = fedavg_ft.run(
        case.initial(),
        case.clients(),
        3,
        **case.common(),
        tuning_batches=case.batches("adapt", schedule),
        tuning_budget=(2, schedule.batch_size),
        tuning_proximal_weight=0.7,
    )
    settings = {"fine_tune_epochs": 2, "final_only": True, "fine_tune_proximal_weight": 0.7}
    _, records = case.run_rounds(pfl.make_algorithm("fedavg_ft", settings))
    for record, models in zip(records, wanted, strict=True):
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
    assert_losses(records[-1], case, "personalized", wanted[-1]["personalized"])
    for record in records[:-1]:
        assert np.isnan(record["scores"]["personalized/test/loss"]).all()
