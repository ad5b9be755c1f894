"""FedProx with fine-tuning against its reference."""

from dataclasses import replace

import numpy as np

from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import assert_losses
from tests.references import fedprox_ft


def tuning_batches(one):
    epochs = one.settings.get("fine_tune_epochs", 1)
    schedule = replace(one.case.federation.schedule, epochs=epochs)
    return {"tuning_batches": one.case.batches("adapt", schedule)}


def assert_tuned(now):
    """Copies follow the loss alone: the term of training is none of theirs."""
    last_only = now.settings.get("final_only", False)
    assert ("personalized" in now.wanted) == (now.t == 2 or not last_only)
    if "personalized" in now.wanted:
        assert_losses(now.record, now.case, "personalized", now.wanted["personalized"])
    elif now.case.scored:
        assert np.isnan(now.record["scores"]["personalized/test/loss"]).all()


test_reference, test_contract = comparison(
    "fedprox_ft",
    fedprox_ft.run,
    variants={
        "every round": Variant({"proximal_weight": 0.7}),
        "final only": Variant(
            {
                "proximal_weight": 0.7,
                "fine_tune_epochs": 2,
                "final_only": True,
                "fine_tune_proximal_weight": 0.4,
            },
            {"proximal_weight": 0.7, "tuning_budget": (2, 4), "tuning_proximal_weight": 0.4},
        ),
    },
    given=tuning_batches,
    states={"server": "global"},
    scores={"global": "global"},
    check=assert_tuned,
)
