"""The SPFL paper's Per-FedAvg against its reference."""

from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_steps
from tests.references import perfedavg_spfl


def check(now):
    walks = [now.batches()] * now.compared.algorithm.local_updates
    assert_steps(now.record, now.cohort, *walks)


test_reference, test_contract = comparison(
    "perfedavg_spfl",
    perfedavg_spfl.run,
    variants={"two": {}, "three": {"local_updates": 3}},
    renamed={"local_updates": "steps"},
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    steps=(),
    check=check,
)
