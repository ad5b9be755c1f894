"""LG-FedAvg against its reference, and the layers that it shares."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_for
from tests.algorithms.comparison import Variant, assert_same, comparison
from tests.algorithms.harness import FourLayers
from tests.algorithms.norms import everyones
from tests.references import lg_fedavg


def assert_record(now):
    now.assert_mean()
    count, present = now.case.num_clients, now.present
    received = now.compared.algorithm.received(now.state, np.arange(count))
    assert_same(received, now.wanted["personalized"], f"round {now.t}")
    warm = now.settings.get("warmup_rounds", 0)
    if not warm:
        return now.assert_copies(present)
    # Layers of their own are received once more by those that have none.
    local = (present & (now.t < warm), present & ~now.before.own)
    now.assert_copies(*(np.stack([each, present], axis=1) for each in local))
    np.testing.assert_array_equal(now.state.own, now.before.own | (present & (now.t >= warm)))


FIRST = {"global_layers": 2, "global_end": "first", "weighting": "size"}
test_reference, test_contract = comparison(
    "lg_fedavg",
    lg_fedavg.run,
    variants={
        "head": {},
        "first two by size": Variant(
            FIRST,
            {"shared": ("hidden_a", "hidden_b"), "weighting": "size"},
            {"model": FourLayers()},
        ),
        # FedAvg in the first round; then clients keep their layers, which begin as the average.
        "warm start": Variant({"warmup_rounds": 1}, options={"participation": 0.4}),
    },
    scores={"personalized": "personalized"},
    copies=None,
    check=assert_record,
)


@pytest.mark.costly
def test_warm_rounds_leave_private_batch_norm_with_its_client():
    """Warm to the end, it averages all other layers with equal weights: FedBN."""
    bn, lg = (
        pfl.make_algorithm(*made) for made in (["fedbn"], ["lg_fedavg", {"warmup_rounds": 3}])
    )
    federation = toy_for(bn, participation=0.6, batch_norm="local")
    wanted, ours = (states_of(algorithm, federation, 3)[-1] for algorithm in (bn, lg))
    assert_close(lg.received(ours, np.arange(5)), everyones(wanted, 5), "models", 1e-12)
    assert not ours.own.any()
