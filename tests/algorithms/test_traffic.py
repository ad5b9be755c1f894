"""The most gradients that algorithms take in a round; comparisons assert steps and copies."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import run_rounds, toy_federation

COUNT = 5
EPOCHS = 2
PASS = np.array([2, 1, 1, 3, 1])  # steps of each client in one pass over its samples

# name, settings, and passes of a client over its samples: of all other algorithms as many as epochs
PASSES = [
    ("fml", {}, 4),  # two models train, one travels
    ("fedas", {"align_batch": 4}, 4),  # alignment and Fisher information: a pass each
    ("fedkd", {}, 4),
    ("fedsam", {}, 4),  # two gradients a step
    ("fedsam", {"global_momentum": True}, 4),
    ("ditto", {}, 4),  # two models train, one travels
    ("waffle", {"everyone": True}, 2 * COUNT),  # times Alices
    ("feddwa", {}, 4),  # trained and guidance models
    ("feddwa", {"guidance_epochs": 1}, 3),
    ("feddwa", {"guidance": "full_gradient"}, 3),
    ("feddwa", {"guidance": "last"}, 2),
    ("feddwa", {"guidance": "received"}, 2),
    ("ifca", {"averaging": "gradients"}, 1),
    ("perfedavg_spfl", {}, 4),
    ("spfl", {}, 8),
    ("spfl_w", {}, 8),
    ("perfedavg_async", {}, 4),
    ("pfl_da", {}, 4),  # a step of the body and one of the own head
    ("feddbe", {}, 4),
    ("fedrep", {}, 12),  # ten epochs of the head, two of the body
    ("perfedavg", {}, 8),  # two passes of two gradients
    ("pfedhn", {"form": "mean_vjp"}, 2),
    ("apfl", {}, 4),  # both models' gradients; alpha stays
    ("pfedme", {}, 10),  # five inner steps on every minibatch
    ("pfedme", {"participants": "sampled"}, 10),
    ("fedpac", {}, 3),  # an epoch of the head, two of the body; numbers: test_fedpac.py
    ("floco", {"warmup_fraction": 1.0}, 2),
]
ELSEWHERE = {
    "ccvr",  # all clients send something after the last round: tests/algorithms/test_ccvr.py
    "fedas",  # passes depend on the size of its minibatches
    "fedfomo",  # what others uploaded: nothing in the first round
    "floco",  # a projection in the middle of the run
    "heurpfedla",
}
FURTHER = {"fedupdate": 1, "l2c": 1}  # steps beside whole passes
FURTHER["perfedavg"] = 8 * np.array([-1, 0, 0, -1, 0])  # of samples two by two minibatches


def test_max_gradients_of_a_round():
    federation = toy_federation(local_epochs=EPOCHS)
    others = (
        set(pfl.core.ALGORITHMS)
        - ELSEWHERE
        - {name for name, settings, _ in PASSES if not settings}
    )
    for name, settings, passes in [*PASSES, *((name, {}, EPOCHS) for name in others)]:
        algorithm = pfl.make_algorithm(name, settings)
        most = algorithm.max_gradients(algorithm.prepare(federation), 1)
        np.testing.assert_array_equal(most, passes * PASS + FURTHER.get(name, 0), name)


@pytest.mark.costly
def test_steps_of_clients_that_are_too_small_or_diverge():
    federation = toy_federation(local_epochs=EPOCHS, drop_last=True, diverging=3)
    _, (record,) = run_rounds(pfl.make_algorithm("fedavg"), federation, 1, scored=())
    steps = record["clients"]["local_steps"]
    np.testing.assert_array_equal(steps, EPOCHS * np.array([1, 0, 0, 2, 1]))
