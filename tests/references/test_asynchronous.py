"""The references of FedAvg (Sync, Async), FedAsync and Per-FedAvg: limits and rounds by hand."""

import numpy as np
import pytest

from tests.references import fedasync, perfedavg_async

# Client 3 is late by two rounds: 0 and 4 it starts, 2 and 6 it arrives, 3 and 7 both ("code").
ALL_ROUNDS = 8


# ------------------------------------------------------------------ FedAsync


def test_decays():
    assert [fedasync.decay("constant", x) for x in (0, 1, 9)] == [1.0, 1.0, 1.0]
    np.testing.assert_allclose([fedasync.decay("poly", x) for x in (0, 3)], [1.0, 0.5])
    assert fedasync.decay("poly", 1, a=2.0) == 0.25
    hinge = [fedasync.decay("hinge", x, a=10.0, b=4.0) for x in (0, 4, 5, 6)]
    np.testing.assert_allclose(hinge, [1.0, 1.0, 1 / 11, 1 / 21], rtol=1e-15)
    with pytest.raises(ValueError, match="Unknown decay"):
        fedasync.decay("linear", 1)


# ------------------------------------------------------------------ Per-FedAvg


def test_timetable_of_its_clients():
    starts, arrivals = perfedavg_async.timetable([0, 1, 2], 7)
    assert starts == [[0, 1, 2], [0], [0, 1], [0, 2], [0, 1], [0], [0, 1, 2]]
    assert arrivals == [[0], [0, 1], [0, 2], [0, 1], [0], [0, 1, 2], [0]]
