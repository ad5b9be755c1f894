"""L2C's reference: the gradient of the weights, mixing, pruning, absent clients."""

import numpy as np
import pytest

from tests.references import l2c, network
from tests.references.small import (
    COUNT,
    ROUNDS,
    further_batches,
)


@pytest.fixture
def federation(setting):
    """The setting with validation batches."""
    return {**setting, "validation_batches": further_batches(setting)}


# ------------------------------------------------------------------ the weights


def test_weights_lie_on_the_simplex_of_the_active():
    logits = np.array([800.0, -3.0, 801.0, 1e5])
    weights = l2c.softmax_over(logits, np.array([True, True, True, False]))
    np.testing.assert_allclose(weights, [1 / (1 + np.e), 0, np.e / (1 + np.e), 0], rtol=1e-12)
    np.testing.assert_array_equal(l2c.softmax_over(logits, np.eye(4, dtype=bool)[1]), [0, 1, 0, 0])


def test_neighbours_to_keep():
    logits = np.array([0.5, 3.0, 0.5, 2.0, -9.0])
    for client, count, kept in (
        (4, 2, [1, 3, 4]),
        (4, 3, [0, 1, 3, 4]),
        (1, 0, [1]),
        (0, 9, range(5)),
    ):
        mask = l2c.neighbours_to_keep(logits, client, count)
        assert np.flatnonzero(mask).tolist() == list(kept)
    tied = l2c.neighbours_to_keep(np.zeros(5), 2, 2)
    assert np.flatnonzero(tied).tolist() == [0, 1, 2]


# ------------------------------------------------------------------ the rounds


def test_a_step_of_the_logits_lowers_the_validation_loss(federation):
    whole = [[[client["samples"]] for client in federation["clients"]]] * ROUNDS
    (after,) = l2c.run(**{**federation, "rounds": 1, "validation_batches": whole}, logit_rate=1e-3)
    initial, everyone = federation["initial"], np.ones(COUNT, bool)
    deltas = {i: network.subtract(initial, after["trained"][i]) for i in range(COUNT)}
    for i in range(COUNT):
        own = federation["clients"][i]["samples"]
        x, y = federation["x"][own], federation["y"][own]
        losses = [
            network.loss_and_gradient(
                l2c.mixed(initial, l2c.softmax_over(logits, everyone), deltas), x, y
            )[0]
            for logits in (np.zeros(COUNT), after["logits"][i])
        ]
        assert losses[1] < losses[0]
