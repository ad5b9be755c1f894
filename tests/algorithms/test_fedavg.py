"""FedAvg against its reference."""

import numpy as np

from tests.algorithms.comparison import comparison
from tests.algorithms.harness import mean_loss
from tests.references import fedavg


def check_mean_and_training_loss(now):
    """A member's training loss is the mean over its steps, each before the update."""
    now.assert_mean()
    before = now.compared.wanted[now.t - 1]["global"] if now.t else now.case.initial()
    for i in now.cohort:
        wanted = mean_loss(now.case, before, (now.batches()[i], now.case.rates[now.t], None))
        np.testing.assert_allclose(now.clients["train_loss"][i], wanted, 1e-9)


test_reference, test_contract = comparison(
    "fedavg",
    fedavg.run,
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    check=check_mean_and_training_loss,
)
