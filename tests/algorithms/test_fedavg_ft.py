"""FedAvg with fine-tuning against its reference."""

from dataclasses import replace

import numpy as np

from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_losses
from tests.references import fedavg_ft

TUNED = {"fine_tune_epochs": 2}
LAST = {"final_only": True, "fine_tune_proximal_weight": 0.7}


def tuning(one):
    schedule = replace(one.case.federation.schedule, epochs=2)
    options = {"tuning_batches": one.case.batches("adapt", schedule)}
    if one.variant == "last-round":
        options |= {"tuning_budget": (2, schedule.batch_size), "tuning_proximal_weight": 0.7}
    return options


def check_tuned(now):
    if "personalized" in now.wanted:
        assert_losses(now.record, now.case, "personalized", now.wanted["personalized"])
    else:
        assert np.isnan(now.record["scores"]["personalized/test/loss"]).all()


test_reference, test_contract = comparison(
    "fedavg_ft",
    fedavg_ft.run,
    settings=TUNED,
    variants={"every-round": {}, "last-round": LAST},
    options={"scored": True},  # fine-tuned models are only scored
    ours=(*TUNED, *LAST),
    given=tuning,
    states={"server": "global"},
    scores={"global": "global"},
    check=check_tuned,
)
