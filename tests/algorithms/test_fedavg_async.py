"""FedAvg (Sync, Async) against its reference, with late clients."""

from tests.algorithms.harness import LATE_PATTERNS, over
from tests.algorithms.late import assert_costs, assert_weights, compare, late_case
from tests.references import fedavg_async

ALGORITHMS = {"fedavg_async": {}, "fedavg_sync": {"synchronous": True}}
FURTHER = [p for p in LATE_PATTERNS if p not in tuple(LATE_PATTERNS)[:2]]  # not with all ALGORITHMS


def check_fedavg(pattern, name):
    case = late_case(pattern)
    up, down = case.arrivals, case.starts
    if name == "fedavg_sync":  # a straggler trains in the round in which it would have been late
        up, down = case.cohorts, case.arrivals
    batches = case.batches(starts=down)
    records = compare(case, name, {}, fedavg_async.run, ALGORITHMS[name], batches=batches)
    assert_costs(records, up, down, batches)
    assert_weights(case, records, up)


@over(LATE_PATTERNS, [("paper-vmap", "fedavg_async")], ALGORITHMS)
def test_fedavg(pattern, variant):
    check_fedavg(pattern, variant)


@over(FURTHER, ["in-order"])
def test_fedavg_sync(pattern):
    """Unshuffled batches show in which rounds a straggler trains."""
    check_fedavg(pattern, "fedavg_sync")
