"""LGA's and PLGA's reference: the predictor's limits, the normalized cosine, rounds by hand."""

import numpy as np
import pytest

from tests.references import lga, network
from tests.references.small import COUNT, assert_same, flat, longer

# Client 3 is late by two rounds ("code": 0 starts, 2 arrives, 3 both, 4 starts ...), client 1 by
# one ("paper": starts in even rounds, arrives in odd ones).
ALL_ROUNDS = 7
STARTS = {3: [0, 3, 4], 1: [0, 2, 4, 6]}
ARRIVALS = {3: [2, 3, 6], 1: [1, 3, 5]}


@pytest.fixture
def late(setting):
    """Seven rounds with clients 1 and 3 late."""
    starts, arrivals = (
        [[i for i in range(COUNT) if i not in rounds or t in rounds[i]] for t in range(ALL_ROUNDS)]
        for rounds in (STARTS, ARRIVALS)
    )
    return longer(setting, ALL_ROUNDS).but(starts=starts, arrivals=arrivals)


@pytest.fixture
def models():
    """v, w0, w1, w: any four models."""
    rng = np.random.default_rng(7)
    names = ("trained", "start", "after", "server")
    return {name: network.random_parameters(rng, 5, 6, 4) for name in names}


# ------------------------------------------------------------------ the similarity


def test_normalized_similarity_lies_between_its_extremes():
    values = {"head": {"bias": np.array([-1.0, 0.0, 1.0])}}
    result = lga.normalized(values)["head"]["bias"]
    np.testing.assert_allclose(result, [0.1192, 0.2689, 0.5], atol=5e-5)


def test_nothing_moved_is_similarity_zero(models):
    zero = network.zeros_like(models["start"])
    for pair in ((zero, models["start"]), (models["start"], zero), (zero, zero)):
        np.testing.assert_array_equal(flat(lga.similarity(*pair)), 0.0)


# ------------------------------------------------------------------ the predictor


def test_a_server_that_stood_still_adds_the_clients_move(models):
    models["after"] = models["server"]
    move = network.subtract(models["trained"], models["start"])
    assert_same(lga.predicted(**models), network.add(models["server"], move))
    assert_same(lga.predicted(**models, equation=10), models["trained"])


# ------------------------------------------------------------------ the rounds


def test_a_delay_of_one_adds_the_clients_move_to_the_server(late):
    history = lga.run(late)
    servers = [late.initial, *(models["global"] for models in history)]
    for t in ARRIVALS[1]:
        move = network.subtract(history[t - 1]["trained"][1], servers[t - 1])
        assert_same(history[t]["predicted"][1], network.add(servers[t], move))
