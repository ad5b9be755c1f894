"""Algorithms in which uploads may be late, beside their references."""

import numpy as np

from tests.algorithms.comparison import comparison
from tests.algorithms.harness import LATE_PATTERNS, LATE_ROUNDS, assert_steps


def late_comparison(algorithm, run, **row):
    """`comparison` of an algorithm in which uploads may be late."""
    return comparison(
        algorithm,
        run,
        options={"rounds": LATE_ROUNDS},
        patterns=LATE_PATTERNS,
        states={"server": "global", "trained": "personalized"},
        scores={"global": "global", "personalized": "personalized"},
        steps=(),
        copies=None,
        **row,
    )


def assert_weights(case, records, arrivals, discount=lambda late: 1):
    """Arrivals weighted by their sizes, and how late each is; `discount` is for the late ones."""
    for t, (record, here) in enumerate(zip(records, arrivals, strict=True)):
        share = case.sizes * case.among(here)
        late = np.asarray(case.cohort(t).spread(case.cohort(t).staleness, 0))
        share = share / max(share.sum(), 1) * np.where(late > 0, discount(late), 1)
        np.testing.assert_allclose(record["matrices"]["mixing"], share[None], 1e-9, 1e-12)
        said = record["clients"]["staleness"]
        np.testing.assert_array_equal(said[list(here)], late[list(here)])


def assert_costs(one, ups, downs):
    """One copy of every block up from `ups[t]` and down to `downs[t]`; only these train."""
    for now in one.rounds():
        assert_steps(now.record, downs[now.t], now.batches())
        now.assert_copies(*(one.case.among(who[now.t]) for who in (ups, downs)))
