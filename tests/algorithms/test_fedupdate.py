"""FedUpdate against its reference."""

from dataclasses import replace

from tests.algorithms.comparison import Round, comparison
from tests.references import fedupdate


def update_batches(one):
    steps = one.algorithm.fine_tune_steps
    schedule = replace(one.case.federation.schedule, epochs=3, steps=steps)
    return {"update_batches": one.case.batches("update", schedule), "steps": steps}


test_reference, test_contract = comparison(
    "fedupdate",
    fedupdate.run,
    variants={"published": {}, "three steps": {"fine_tune_steps": 3}},
    ours=("fine_tune_steps",),
    given=update_batches,
    states={"server": "global", "models": "personalized"},
    scores={"global": "global", "personalized": "personalized"},
    steps=("batches", "update_batches"),
    check=Round.assert_mean,
)
