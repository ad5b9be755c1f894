"""FedAvg (Sync, Async) against its reference, with late clients."""

from tests.algorithms.comparison import Variant
from tests.algorithms.late import assert_costs, assert_weights, late_comparison
from tests.references import fedavg_async


def batches(one):
    """In the synchronous form a straggler trains in the round in which it would have been late."""
    case = one.case
    synchronous = one.algorithm.name == "fedavg_sync"
    begun = case.arrivals if synchronous else case.starts
    return {"synchronous": synchronous, "batches": case.batches(starts=begun)}


def check_arrivals(one):
    case = one.case
    up, down = case.arrivals, case.starts
    if one.options["synchronous"]:
        up, down = case.cohorts, case.arrivals
    assert_costs(one, up, down)
    assert_weights(case, one.records, up)


test_reference, test_contract = late_comparison(
    "fedavg_async",
    fedavg_async.run,
    variants={
        "async": {},
        # Unshuffled batches show in which rounds a straggler trains.
        "sync-in-order": Variant(
            algorithm="fedavg_sync",
            options={"batch_order": "by_class", "local_epochs": 1, "local_steps": 2},
        ),
    },
    given=batches,
    finish=check_arrivals,
)
