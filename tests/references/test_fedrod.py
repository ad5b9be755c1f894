"""FedRoD's reference: both losses, both heads, who keeps what."""

import numpy as np
import pytest

from tests.references import fedrod, network
from tests.references.small import (
    CLASSES,
    differences,
    flat,
)


def without_class(setting, client, missing):
    """The setting in which a client has no sample of a class, and its samples and offset."""
    own = setting.clients[client]["samples"]
    y = setting.y.copy()
    y[own[y[own] == missing]] = (missing + 1) % CLASSES
    y[own[0]] = (missing + 2) % CLASSES  # more than one class is left
    return setting.but(y=y), own, fedrod.log_counts(y[own], CLASSES)


# ------------------------------------------------------------------ the losses


@pytest.mark.parametrize("missing", [None, 1])
def test_balanced_loss_and_its_gradient(setting, missing):
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

    def at(vector):
        return fedrod.generic_loss(network.unflat(vector, like), x, y, offset)[0]

    np.testing.assert_allclose(flat(gradient), differences(at, flat(like)), rtol=1e-6, atol=1e-9)
    if missing is not None:
        assert counts[missing] == 0
        assert not gradient["head"]["kernel"][:, missing].any()
        assert gradient["head"]["bias"][missing] == 0.0
