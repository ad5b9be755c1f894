"""FedDyn against its reference, its invariants, and running statistics."""

import pytest

from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.models.norm_net import NormNet
from tests.references import feddyn

ALPHA = 0.4


algorithm = maker("feddyn", {"alpha": ALPHA})


# With h, and with the squared norm: codes have been seen to lack the one or root the other.
test_reference, test_contract = comparison(
    "feddyn",
    feddyn.run,
    settings={"alpha": ALPHA, "score_last": True},
    variants={"equal": {}, "size": {"scaling": "size"}},  # sizes of all clients are known
    ours=("score_last",),
    states={
        "server": "global",
        "average": "average",
        "drift": "h",
        "gradients": "gradients",
        "last": "trained",
    },
    scores={
        "personalized": "global",
        "global": "global",
        "average": "average",
        "everyone": "everyone",
    },
    check=lambda now: now.assert_mean(uniform=True),
)


@pytest.mark.costly
def test_running_statistics_are_averaged():
    """theta's step is none of theirs."""
    first, second, third = states_of(algorithm(), toy_federation(model=NormNet()), 2)
    for state in (second, third):
        assert_close(state.server["batch_stats"], state.average["batch_stats"], "statistics", 0)
    mean = first.server["batch_stats"]["bn"]["mean"]
    assert (third.server["batch_stats"]["bn"]["mean"] != mean).all()
