"""What every method sends and receives in a round, in copies of the model: a table.

A later method joins with a row. That the host turns copies of blocks into bytes is tested with
results.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context, keys
from fedjax_pfl.testing import toy_federation

COUNT = 5

# name, settings, copies up, copies down of a client that takes part
TRAFFIC = [
    ("local", {}, 0, 0),
    ("fedavg", {}, 1, 1),
    ("fedavg_ft", {}, 1, 1),  # fine-tuning is the client's own business
    ("scaffold", {}, 2, 2),  # models and controls
    ("waffle", {}, 2, 2),
    ("waffle", {"everyone": True}, 2 * COUNT, 2 * COUNT),  # times Alices
    ("weight_erosion", {}, 1, 1),
    ("feddwa", {"guidance": "epochs"}, 2, 1),  # trained and guidance models
    ("feddwa", {"guidance": "full_gradient"}, 2, 1),
    ("feddwa", {"guidance": "last"}, 1, 1),  # the server remembers
    ("feddwa", {"guidance": "received"}, 1, 1),
    ("cwfedavg", {}, 1, 1),  # shares are read off the upload
    ("cwfedavg", {"shares": "labels"}, 1, 1),  # C numbers once, not counted
    ("fedupdate", {}, 1, 1),
    ("perfedavg_spfl", {}, 1, 1),
    ("spfl", {}, 2, 2),  # a round that begins with the measurement of similarities
    ("spfl_w", {}, 2, 2),
    ("fedavg_sync", {}, 1, 1),  # late clients: tests/algorithms/test_fedavg_async.py
    ("fedavg_async", {}, 1, 1),
    ("fedasync", {}, 1, 1),
    ("lga", {}, 1, 1),  # the server predicts
    ("plga", {}, 1, 1),
    ("pfedla", {}, 1, 1),  # heurpfedla's blocks: tests/algorithms/test_pfedla_limits.py
]
QUICK = ("scaffold", "cwfedavg")  # under sampling
SLOW = ("full_gradient", "received", "labels")
ALL_RECEIVE = ("cwfedavg",)  # also the clients that are not sampled


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def copies(name, settings, **options):
    """What a round with client 0, WAFFLE's Alice, records: copies [N] up and down, and who took
    part [N]."""
    algorithm = pfl.make_method(name, settings)
    federation = algorithm.adjusted(toy_federation(**options))

    key = jax.random.key(0)

    def cohort_of(t):
        cohort_key = keys.derive(key, "cohort")
        return federation.participation.cohort(cohort_key, t, federation.data.ids)

    @jax.jit
    def play(federation, cohort, t):
        ctx = Context(federation, key, t, jnp.int32(20), cohort)
        record = algorithm.round(ctx, algorithm.init(ctx))[1]
        return record.up, record.down, record.clients["participated"]

    t = next(t for t in range(20) if 0 in cohort_of(t).rows)
    up, down, present = jax.device_get(play(federation, cohort_of(t), jnp.int32(t)))
    for count in (up, down):
        assert count.dtype == np.int32 and count.shape == (COUNT, 2)
        np.testing.assert_array_equal(count[:, 0], count[:, 1])  # every block alike
    return up[:, 0], down[:, 0], present


def is_slow(case):
    """Also those whose comparison with a reference looks at the copies of every round."""
    at = [known[0] for known in TRAFFIC].index("fedupdate")
    return bool(set(case[1].values()) & set(SLOW)) or TRAFFIC.index(case) >= at


def label(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else None


@pytest.mark.parametrize(
    ("name", "settings", "up", "down"),
    [pytest.param(*case, marks=pytest.mark.slow if is_slow(case) else ()) for case in TRAFFIC],
    ids=label,
)
def test_copies_of_those_who_take_part(name, settings, up, down):
    sent, received, present = copies(name, settings)
    assert present.all()
    np.testing.assert_array_equal(sent, np.full(COUNT, up))
    np.testing.assert_array_equal(received, np.full(COUNT, down))


@pytest.mark.parametrize(
    ("name", "settings", "up", "down"),
    [
        pytest.param(*case, marks=() if case[0] in QUICK and not case[1] else pytest.mark.slow)
        for case in TRAFFIC
        if case[0] != "local" and case[1] != {"everyone": True}
    ],
    ids=label,
)
def test_who_is_absent_sends_nothing(name, settings, up, down):
    sent, received, present = copies(name, settings, participation_fraction=0.6)
    assert present.sum() == 3
    np.testing.assert_array_equal(sent, up * present)
    np.testing.assert_array_equal(received, down * (present | (name in ALL_RECEIVE)))


def test_local_training_has_no_server_to_sample():
    sent, received, present = copies("local", {}, participation_fraction=0.6)
    assert present.all() and not sent.any() and not received.any()
