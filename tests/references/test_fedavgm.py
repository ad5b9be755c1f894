"""FedAvgM's reference: its limit FedAvg, a geometric series, two rounds by hand."""

import numpy as np

from tests.references import fedavgm, network
from tests.references.small import flat


def test_the_reference_of_a_constant_step_is_a_geometric_series(setting, monkeypatch):
    monkeypatch.setattr(fedavgm, "sgd", lambda model, *_: network.mapped(lambda w: w - 1, model))
    history = fedavgm.run(**setting, server_momentum=0.5, nesterov=False)
    for models, speed in zip(history, (1, 1.5, 1.75), strict=True):
        np.testing.assert_allclose(flat(models["velocity"]), speed, rtol=1e-12)
    away = flat(setting["initial"]) - flat(history[-1]["global"])
    np.testing.assert_allclose(away, 1 + 1.5 + 1.75, rtol=1e-12)
