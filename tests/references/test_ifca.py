"""IFCA's reference: choices, FedAvg as its limit, a round by hand, first models."""

import numpy as np
import pytest

from tests.references import ifca, network
from tests.references.small import (
    COUNT,
)


def drawn(count, seed=4):
    rng = np.random.default_rng(seed)
    return [network.random_parameters(rng, 5, 6, 4) for _ in range(count)]


@pytest.fixture
def several(setting):
    """The setting with three first models."""
    return {**setting, "initial": drawn(3)}


def test_two_kinds_of_clients_get_a_model_each(setting):
    """From the same model for all, one round of warm-up by kinds is enough to part them."""
    y = setting["y"].copy()
    for i in (1, 3):
        own = setting["clients"][i]["samples"]
        y[own] = (y[own] + 2) % 4
    common = {**setting, "y": y, "initial": drawn(2), "groups": [0, 1, 0, 1], "warmup": 1}
    history = ifca.run(**common)
    assert history[0]["clusters"] == {0: 0, 1: 1, 2: 0, 3: 1}
    for models in history:
        assert models["choices"] == [0, 1, 0, 1]


def test_balanced_first_models(several):
    clients, x, y = several["clients"], several["x"], several["y"]

    def least(models):
        chosen = [ifca.choose(models, client["samples"], x, y) for client in clients]
        return min(chosen.count(k) for k in range(len(models))) / COUNT

    draws = [drawn(2, seed) for seed in range(12)]
    shares = [least(models) for models in draws]
    assert 0.0 in shares and 0.5 in shares  # .25 of four clients would not do
    assert ifca.balanced(draws, clients, x, y) is draws[shares.index(0.5)]
    assert ifca.balanced(draws, clients, x, y, share=0.0) is draws[0]
    worse = [models for models, share in zip(draws, shares, strict=True) if share < 0.35]
    most = max(least(models) for models in worse)
    best = [models for models in worse if least(models) == most]
    assert len(best) > 1
    assert ifca.balanced(worse, clients, x, y) is best[0]
    four = [drawn(4, seed) for seed in range(3)]  # a tenth of four clients is one of them
    assert ifca.balanced(four, clients, x, y, share=0.1) is ifca.balanced(four, clients, x, y)
