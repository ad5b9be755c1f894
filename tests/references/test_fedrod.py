"""FedRoD's reference: both losses, both heads, who keeps what."""

import numpy as np
import pytest

from tests.references import fedavg, fedrod, network
from tests.references.small import CLASSES, EVERYBODY, PARTIAL, assert_same


def without_class(setting, client, missing):
    """The setting in which a client has no sample of a class, and its samples and offset."""
    own = setting.clients[client]["samples"]
    y = setting.y.copy()
    y[own[y[own] == missing]] = (missing + 1) % CLASSES
    y[own[0]] = (missing + 2) % CLASSES  # more than one class is left
    return setting.but(y=y), own, fedrod.log_counts(y[own], CLASSES)


# ------------------------------------------------------------------ the losses


def test_counts_of_classes():
    np.testing.assert_allclose(
        fedrod.log_counts(np.array([0, 2, 2, 2]), 4), [0, -np.inf, np.log(3), -np.inf]
    )


@pytest.mark.parametrize("missing", [None, 1])
def test_balanced_loss(setting, missing):
    own = setting.clients[3]["samples"]
    offset = fedrod.log_counts(setting.y[own], CLASSES)
    if missing is not None:
        setting, own, offset = without_class(setting, 3, missing)
    x, y, like = setting.x[own], setting.y[own], setting.initial
    loss, gradient = fedrod.generic_loss(like, x, y, offset)
    # Each class's exponential counts as often as the class occurs.
    counts = np.bincount(y, minlength=CLASSES)
    powers = counts * np.exp(network.logits(like, x))
    shares = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(shares[np.arange(len(y)), y]).mean(), rtol=1e-13)
    if missing is not None:
        assert counts[missing] == 0
        assert not gradient["head"]["kernel"][:, missing].any()
        assert gradient["head"]["bias"][missing] == 0.0


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_with_equal_counts_the_generic_model_is_fedavgs(setting, cohorts):
    y, clients = setting.y.copy(), []
    for client in setting.clients:
        own = client["samples"]
        y[own] = np.arange(len(own)) % CLASSES
        clients.append({"samples": own[: len(own) // CLASSES * CLASSES]})
    common = setting.but(cohorts=cohorts, y=y, clients=clients)
    for models, expected in zip(fedrod.run(common), fedavg.run(common), strict=True):
        assert_same(models["global"], expected["global"])
