"""FedExP against its reference, and rounds without uploads."""

import numpy as np
import pytest

from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_losses, maker
from tests.references import fedexp

algorithm = maker("fedexp")


def check_rate(now):
    np.testing.assert_allclose(now.record["scalars"]["server_rate"], now.wanted["rate"], 1e-9)
    last = now.compared.variant == "last"
    scored = [now.wanted["global" if last else "average"]] * now.case.num_clients
    for name in ("global", "personalized"):
        assert_losses(now.record, now.case, name, scored)
    now.assert_mean()


def check_longer_steps(one):
    if len(one.case.cohorts[0]) > 1:
        assert max(models["rate"] for models in one.wanted) > 1.01


test_reference, test_contract = comparison(
    "fedexp",
    fedexp.run,
    variants={
        "average": {"epsilon": 1e-4},
        "last": {"epsilon": 0.0, "average_last": False, "weighting": "uniform"},
    },
    ours=("average_last",),
    states={"server": "global"},
    check=check_rate,
    finish=check_longer_steps,
)


@pytest.mark.costly
def test_rounds_in_which_nobody_arrives_leave_both_models():
    late = dict.fromkeys(range(5), 1)  # on time in every third round alone
    states = states_of(algorithm(), toy_federation(stragglers=late), 5)
    assert_close(states[2].server, states[0].server, "before")
    assert_close(states[5].server, states[3].server, "after")
    assert_close(states[5].previous, states[2].server["params"], "the model before the last step")
    assert states[5].rate == 1
