"""Traffic and computation of algorithms in a round, in models and local steps.

Comparisons assert what the others send. That the host turns copies of blocks into bytes is tested
with results.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import keys

COUNT, TOTAL = 5, 20
EPOCHS = 2
PASS = np.array([2, 1, 1, 3, 1])  # steps of each client in one pass over its samples

# name, settings, and of a client that takes part: copies up, copies down, passes over its samples
TRAFFIC = [
    ("local", {}, 0, 0, 2),
    ("fedcp", {}, 1, 1, 2),
    ("gpfl", {}, 1, 1, 2),
    ("fedex_lora", {}, 1, 1, 2),
    ("flora", {}, 1, 1, 2),
    ("fedgh", {}, 0, 1, 2),  # and class means
    ("fedas", {"align_batch": 4}, 1, 1, 4),  # alignment and Fisher information: a pass each
    ("fedgc", {}, 1, 1, 2),
    ("fedgen", {}, 1, 1, 2),  # and a generator: tests/algorithms/test_fedgen.py
    ("hetlora", {}, 1, 1, 2),
    ("feddpa", {}, 1, 1, 2),
    ("cwfedavg", {}, 1, 1, 2),  # shares are read off the upload
    ("cwfedavg", {"shares": "labels"}, 1, 1, 2),  # and C numbers, once: test_cwfedavg.py
    ("lga", {}, 1, 1, 2),  # the server predicts
    ("plga", {}, 1, 1, 2),
    ("fedmtl", {}, 1, 1, 2),
    ("fedpac", {}, 1, 1, 3),  # an epoch of the head, two of the body; numbers: test_fedpac.py
    ("weight_erosion", {}, 1, 1, 2),
    ("waffle", {}, 2, 2, 2),
    ("feddwa", {}, 2, 1, 4),  # trained and guidance models
    ("feddwa", {"guidance_epochs": 1}, 2, 1, 3),
    ("feddwa", {"guidance": "full_gradient"}, 2, 1, 3),
    ("feddwa", {"guidance": "last"}, 1, 1, 2),  # the server remembers
    ("feddwa", {"guidance": "received"}, 1, 1, 2),
    ("floco", {"warmup_fraction": 1.0}, 1, 1, 2),  # with points: tests/algorithms/test_floco.py
]
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


@jax.jit
def cohorts_of(participation, ids, key):
    """Those of all rounds, leaves [TOTAL, M]."""
    key = keys.derive(key, "cohort")
    return jax.vmap(lambda t: participation.cohort(key, t, ids))(jnp.arange(TOTAL))


def recorded(name, settings, rounds=1, **options):
    """What the first rounds with client 0, WAFFLE's Alice, record, run from the first state:
    copies [N] up and down, which clients took part [N], and local steps [N]."""
    algorithm = pfl.make_algorithm(name, settings)
    federation = algorithm.prepare(toy_federation(local_epochs=EPOCHS, **options))

    key = jax.random.key(0)
    cohorts = jax.device_get(cohorts_of(federation.participation, federation.data.ids, key))

    @jax.jit
    def run_rounds(federation, cohort, t):
        ctx = Context(federation, key, t, jnp.int32(TOTAL), cohort)
        record = algorithm.round(ctx, algorithm.init(ctx))[1]
        return record.up, record.down, record.clients["participated"], record.clients["local_steps"]

    found = []
    for t in [t for t in range(TOTAL) if 0 in cohorts.rows[t]][:rounds]:
        cohort = jax.tree.map(lambda leaf, t=t: leaf[t], cohorts)
        up, down, present, steps = jax.device_get(run_rounds(federation, cohort, jnp.int32(t)))
        for count in (up, down):
            assert count.dtype == np.int32 and count.shape == (COUNT, federation.plan.num_blocks)
            assert (count == count[:, :1]).all()  # every block alike
        assert steps.dtype == np.int32
        found.append((up[:, 0], down[:, 0], present, steps))
    return found[0] if rounds == 1 else found


def label(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else None


@pytest.mark.costly
@pytest.mark.parametrize(("name", "settings", "up", "down", "passes"), TRAFFIC, ids=label)
def test_copies_and_steps_of_a_round(name, settings, up, down, passes):
    """Absent clients send and compute nothing."""
    options = {} if name == "local" else {"participation": 0.6}
    sent, received, present, steps = recorded(name, settings, **options)
    assert present.sum() == (3 if options else COUNT)
    np.testing.assert_array_equal(sent, up * present)
    np.testing.assert_array_equal(received, down * present)
    np.testing.assert_array_equal(steps, passes * PASS * present)


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
def test_traffic_of_local_training_under_participation():
    sent, received, present, steps = recorded("local", {}, participation=0.6)
    assert present.all() and not sent.any() and not received.any()
    np.testing.assert_array_equal(steps, 2 * PASS)


@pytest.mark.costly
def test_traffic_of_similarity_rounds():
    """They cost everybody; the branch of `lax.cond` that was not taken counts nothing."""
    first, second = recorded("spfl", {}, rounds=2, participation=0.6)
    for due, (sent, received, present, steps) in ((1, first), (0, second)):
        assert present.sum() == 3
        np.testing.assert_array_equal(sent, present + due)
        np.testing.assert_array_equal(received, present + due)
        np.testing.assert_array_equal(steps, 2 * EPOCHS * PASS * (present + due))


@pytest.mark.costly
def test_steps_of_clients_that_are_too_small_or_diverge():
    *_, steps = recorded("fedavg", {}, drop_last=True, diverging=3)
    np.testing.assert_array_equal(steps, EPOCHS * np.array([1, 0, 0, 2, 1]))
