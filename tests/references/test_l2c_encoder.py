"""meta-L2C's attention, and the rounds in which it gives L2C its logits."""

import numpy as np

from tests.references import l2c_encoder, network
from tests.references.small import (
    CLASSES,
    flat,
)


def updates_of(seed, clients=(0, 1, 3)):
    rng = np.random.default_rng(seed)
    first = network.random_parameters(rng, 5, 6, CLASSES)
    return {
        j: l2c_encoder.update_of(first, network.random_parameters(rng, 5, 6, CLASSES))
        for j in clients
    }


def test_rows_lead_to_one_unit_each():
    kernel = np.arange(24.0).reshape(2, 3, 4)  # such as a convolution's
    rows = l2c_encoder.rows_of(kernel)
    assert rows.shape == (4, 6)
    np.testing.assert_array_equal(rows[1], kernel[..., 1].ravel())
    np.testing.assert_array_equal(l2c_encoder.rows_of(np.arange(3.0)), [[0], [1], [2]])


def test_updates_have_length_one():
    for update in updates_of(5).values():
        np.testing.assert_allclose(np.linalg.norm(flat(update)), 1.0, rtol=1e-9)
    model = network.random_parameters(np.random.default_rng(0), 5, 6, CLASSES)
    assert not flat(l2c_encoder.update_of(model, model)).any()
