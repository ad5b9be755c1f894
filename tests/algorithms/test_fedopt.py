"""FedAdagrad, FedAdam and FedYogi against their reference."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.comparison import Variant, comparison
from tests.references import fedopt

RATE, TAU = 0.03, 2e-3


def algorithm(name, **settings):
    return pfl.make_algorithm(name, settings)


def rule_and_first_v(one):
    name = one.algorithm.name.removeprefix("fed")
    return {"rule": name, "v0": one.settings.get("v0", 1.0) * TAU**2}


def check_second_moment(now):
    assert_close(now.state.optimizer.second, now.wanted["second"], "second moment", 1e-12)


# "code" is the published code's first v and rate.
test_reference, test_contract = comparison(
    "fedadam",
    fedopt.run,
    settings={"server_rate": RATE, "tau": TAU},
    variants={
        "fedadam": {},
        "fedadagrad": Variant({"weighting": "uniform", "b1": 0.3}, algorithm="fedadagrad"),
        "fedyogi": Variant({"v0": 2.0}, algorithm="fedyogi"),
        "fedadam code": {"bias_correction": True, "v0": 0.0},
    },
    given=rule_and_first_v,
    states={"server": "global", "optimizer.first": "first"},
    scores={"global": "global", "personalized": "global"},
    check=check_second_moment,
)


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_second_moment_of_changes_below_and_above_it(name):
    changes = np.array([-2.0, -0.5, 0.0, 1.5])
    change, gradient, ones = ({"a": {"b": x}} for x in (changes, -changes, np.ones(4)))
    optimizer = algorithm(name, tau=1.0).server_optimizer()
    _, memory = optimizer.update(gradient, optimizer.init(ones), ones)
    wanted = fedopt.second_moment(name.removeprefix("fed"), ones, change, 0.99)
    assert_close(memory.second, wanted, "second moment", 1e-12)
