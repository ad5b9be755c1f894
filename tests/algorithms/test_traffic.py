"""The most gradients that algorithms take in a round; comparisons assert steps and copies."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.core.sample_privacy import most_gradients
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.testing.toys import run_rounds, toy_federation

EPOCHS = 2
PASS = np.array([2, 1, 1, 3, 1])  # steps of each client in one pass over its samples

# name, settings, and passes of a client over its samples in four rounds
PASSES = [
    ("fedavg", {}, 8),
    ("fml", {}, 16),  # two models train, one travels
    ("ditto", {}, 16),
    ("ditto", {"batches": "shared"}, 16),
    ("feddwa", {}, 16),  # trained and guidance models
    ("feddwa", {"guidance_epochs": 1}, 12),
    ("perfedavg_spfl", {}, 16),
    ("spfl", {"gamma": 3}, 24),  # two updates on a minibatch, and the routine twice
    ("pfl_da", {}, 16),  # a step of the body and one of the own head
    ("fedrep", {}, 48),  # ten epochs of the head, two of the body
    ("apfl", {}, 16),  # both models' gradients
    ("pfedme", {}, 40),  # five inner steps on every minibatch
    ("floco", {}, 10),  # a projection in the middle of the run
]


@pytest.mark.parametrize(
    ("name", "settings", "passes"),
    [
        row if row[0] in ("spfl", "pfedme") else pytest.param(*row, marks=pytest.mark.costly)
        for row in PASSES
    ],
)
def test_most_gradients_of_four_rounds(name, settings, passes):
    """Over which an epsilon is divided."""
    algorithm = pfl.make_algorithm(name, settings)
    private = {"dp": "sample", "dp_clip": 1.0, "dp_noise": 1.0, "validation_size": 0}
    federation = algorithm.prepare(toy_federation(local_epochs=EPOCHS, **private))
    facts = round_facts(one_run(algorithm), federation)
    np.testing.assert_array_equal(most_gradients(federation, facts, 4), passes * PASS)


@pytest.mark.costly
def test_steps_of_clients_that_are_too_small_or_diverge():
    federation = toy_federation(local_epochs=EPOCHS, drop_last=True, diverging=3)
    _, (record,) = run_rounds(pfl.make_algorithm("fedavg"), federation, 1, scored=())
    steps = record["clients"]["local_steps"]
    np.testing.assert_array_equal(steps, EPOCHS * np.array([1, 0, 0, 2, 1]))
