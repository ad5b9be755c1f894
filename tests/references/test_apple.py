"""APPLE's reference: gradients, the penalty's schedule, local training as its limit, by hand."""

import numpy as np
import pytest

from tests.references import apple, network
from tests.references.small import (
    COUNT,
    SIZES,
    differences,
    flat,
)

FIRST = np.array(SIZES) / sum(SIZES)


@pytest.fixture
def several(setting):
    """The setting with a core of its own for each client, and without momentum."""
    rng = np.random.default_rng(5)
    cores = [network.random_parameters(rng, 5, 6, 4) for _ in range(COUNT)]
    return {**setting, "initial": cores, "momentum": 0.0, "relation_momentum": 0.0}


# ------------------------------------------------------------------ the penalty's schedule


def test_penalty_falls_over_the_first_rounds():
    factor = [apple.penalty_factor(t, 40) for t in range(6)]
    np.testing.assert_allclose(factor, [1, 1e-3**0.25, 1e-3**0.5, 1e-3**0.75, 0, 0], rtol=1e-14)
    cosine = [apple.penalty_factor(t, 40, 0.1, "cosine") for t in range(6)]
    np.testing.assert_allclose(
        cosine, [1, 0.5 + np.sqrt(0.125), 0.5, 0.5 - np.sqrt(0.125), 0, 0], atol=1e-15
    )
    assert apple.penalty_factor(0, 9) == 0.0  # a tenth of 9 rounds is none
    assert apple.penalty_factor(2, 30) > 0.0 == apple.penalty_factor(3, 30)
    assert apple.penalty_factor(28, 100, 0.29) > 0.0 == apple.penalty_factor(29, 100, 0.29)
    with pytest.raises(ValueError, match="Unknown schedule"):
        apple.penalty_factor(0, 9, schedule="linear")


# ------------------------------------------------------------------ the gradients


def test_gradients_are_those_of_the_objective(several, setting):
    cores, i, penalty = several["initial"], 2, 0.7
    relations = np.array([0.4, -0.2, 0.9, 0.1])
    at = setting["clients"][i]["samples"]
    x, y = setting["x"][at], setting["y"][at]

    def objective(core, q):
        mixed = [core if j == i else other for j, other in enumerate(cores)]
        loss, _ = network.loss_and_gradient(network.combine(q, mixed), x, y)
        return loss + penalty / 2 * np.sum((q - FIRST) ** 2)

    slope, slopes = apple.gradients(i, cores, relations, FIRST, penalty, x, y)
    by_core = differences(
        lambda v: objective(network.unflat(v, cores[i]), relations), flat(cores[i])
    )
    np.testing.assert_allclose(flat(slope), by_core, rtol=1e-6, atol=1e-9)
    by_relation = differences(lambda q: objective(cores[i], q), relations)
    np.testing.assert_allclose(slopes, by_relation, rtol=1e-6, atol=1e-9)
