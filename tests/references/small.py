"""A small federation and comparisons that the tests of the references share."""

from itertools import pairwise

import numpy as np

from tests.references import network
from tests.references.setting import Setting

SIZES = (9, 4, 6, 11)
COUNT = len(SIZES)
CLASSES = 4
ROUNDS = 3
RATES = (0.5, 0.4, 0.32)
EVERYBODY = [list(range(COUNT))] * ROUNDS
PARTIAL = [[0, 2], [1, 2, 3], [1]]


def flat(model):
    return network.flat(model)


def stack(models):
    return np.stack([network.flat(model) for model in models])


def assert_same(model, other, **tolerance):
    np.testing.assert_allclose(
        flat(model), flat(other), **{"rtol": 1e-11, "atol": 1e-13, **tolerance}
    )


def differences(function, vector, step=1e-5):
    """Central differences of a scalar function."""
    slopes = np.zeros_like(vector)
    for k in range(len(vector)):
        shift = np.zeros_like(vector)
        shift[k] = step
        slopes[k] = (function(vector + shift) - function(vector - shift)) / (2 * step)
    return slopes


def epochs(rng, samples, rounds):
    """batches[t][i]: one shuffled epoch of every client in every round, in batches of 4."""

    def epoch(own):
        order = rng.permutation(own)
        return [order[k : k + 4] for k in range(0, len(order), 4)]

    return [[epoch(own) for own in samples] for _ in range(rounds)]


def further_batches(setting, seed=11):
    """Epochs for another purpose than the local training."""
    samples = [client["samples"] for client in setting.clients]
    return epochs(np.random.default_rng(seed), samples, setting.rounds)


def make_setting():
    """Four clients of unequal size, each rich in a class of its own."""
    rng = np.random.default_rng(2)
    bounds = np.cumsum((0, *SIZES))
    samples = [np.arange(a, b) for a, b in pairwise(bounds)]
    y = np.where(
        rng.random(sum(SIZES)) < 0.8,
        np.repeat(np.arange(COUNT), SIZES),
        rng.integers(0, CLASSES, sum(SIZES)),
    )

    return Setting(
        initial=network.random_parameters(rng, 5, 6, CLASSES),
        clients=[{"samples": own} for own in samples],
        rounds=ROUNDS,
        x=rng.normal(size=(sum(SIZES), 5)) + np.eye(5)[y],
        y=y,
        sizes=SIZES,
        cohorts=[list(range(COUNT))] * ROUNDS,
        batches=epochs(rng, samples, ROUNDS),
        learning_rate=RATES,
    )


def longer(setting, rounds):
    """The same federation over more rounds: cohorts, batches and rates repeated."""
    picks = [t % ROUNDS for t in range(rounds)]
    cycled = {key: [getattr(setting, key)[t] for t in picks] for key in ("cohorts", "batches")}
    return setting.but(**cycled, rounds=rounds, learning_rate=[RATES[t] for t in picks])
