"""Per-FedAvg of late clients against its reference."""

import numpy as np

from tests.algorithms.comparison import comparison
from tests.algorithms.harness import LATE_PATTERNS, LATE_ROUNDS, assert_steps
from tests.references import perfedavg_async


def timetable(one):
    """The algorithm's cycle is its own, d + 1 rounds, whatever the federation's."""
    case = one.case
    starts, arrivals = case.cohorts, case.cohorts
    if "participation" not in LATE_PATTERNS[one.pattern]:
        delays = np.asarray(case.federation.participation.delay)
        starts, arrivals = perfedavg_async.timetable(delays, case.rounds)
    return {"starts": starts, "arrivals": arrivals, "batches": case.batches(starts=starts)}


def check(now):
    """Copies and gradients of who starts and arrives; arrivals weigh their share of all samples."""
    setting = now.compared.setting
    starts, arrivals = (now.case.among(who[now.t]) for who in (setting.starts, setting.arrivals))
    now.assert_copies(arrivals, starts)
    walks = [now.batches()] * now.compared.algorithm.local_updates
    assert_steps(now.record, setting.starts[now.t], *walks)
    shares = np.where(arrivals, now.case.sizes / now.case.sizes.sum(), 0)
    np.testing.assert_allclose(now.record["matrices"]["mixing"], shares[None], 1e-9, 1e-12)


test_reference, test_contract = comparison(
    "perfedavg_async",
    perfedavg_async.run,
    variants={"two": {}, "three": {"local_updates": 3}},
    options={"rounds": LATE_ROUNDS},
    patterns=LATE_PATTERNS,
    renamed={"local_updates": "steps"},
    given=timetable,
    states={"server": "global", "trained": "personalized", "arrived": "arrived"},
    scores={"global": "global", "personalized": "personalized"},
    steps=(),
    copies=None,
    check=check,
)
