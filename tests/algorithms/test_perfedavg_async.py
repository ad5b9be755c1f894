"""Per-FedAvg of late clients against its reference."""

import numpy as np

from tests.algorithms.harness import LATE_PATTERNS, LATE_ROUNDS, over
from tests.algorithms.late import assert_costs, compare, late_case
from tests.references import perfedavg_async


@over(LATE_PATTERNS, [("in-order", 2), ("paper-vmap", 3)], (2, 3))
def test_perfedavg(pattern, variant):
    """Its cycle is its own, d + 1 rounds, whatever the federation's; two steps unless told."""
    case, settings = late_case(pattern), {} if variant == 2 else {"local_updates": variant}
    starts, arrivals = case.cohorts, case.cohorts
    if "participation" not in LATE_PATTERNS[pattern]:
        delays = np.asarray(case.federation.participation.delay)
        starts, arrivals = perfedavg_async.timetable(delays, LATE_ROUNDS)
    batches = case.batches(starts=starts)
    changes = {"starts": starts, "arrivals": arrivals, "batches": batches}
    options = {"steps": variant}
    records = compare(case, "perfedavg_async", settings, perfedavg_async.run, options, **changes)
    assert_costs(records, arrivals, starts, batches, passes=variant)
    shares = case.sizes / case.sizes.sum()
    for record, here in zip(records, arrivals, strict=True):
        expected = np.where(np.isin(np.arange(case.num_clients), here), shares, 0)
        np.testing.assert_allclose(record["matrices"]["mixing"], expected[None], 1e-9, 1e-12)
