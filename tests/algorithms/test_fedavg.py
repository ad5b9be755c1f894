"""FedAvg against its reference."""

import numpy as np

from tests.algorithms.comparison import comparison
from tests.algorithms.harness import network_loss
from tests.references import fedavg
from tests.references.local_sgd import sgd


def check_mean_and_training_loss(now):
    """A member's training loss is the mean over its steps, each before the update."""
    now.assert_mean()
    s, before = now.compared.setting, now.compared.wanted[now.t - 1]["global"]
    for i in now.cohort:
        model, losses = before if now.t else now.compared.setting.initial, []
        for batch in s.batches[now.t][i]:
            losses.append(network_loss(model, s.x[batch], s.y[batch]))
            model = sgd(model, [batch], s.x, s.y, s.learning_rate[now.t])
        np.testing.assert_allclose(now.clients["train_loss"][i], np.mean(losses), 1e-9)


test_reference, test_contract = comparison(
    "fedavg",
    fedavg.run,
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    check=check_mean_and_training_loss,
)
