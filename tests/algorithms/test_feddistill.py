"""Federated distillation against its reference, and its limits."""

import numpy as np

from fedjax_pfl.algorithms.feddistill import Predictions, mean_of
from tests.algorithms.comparison import comparison
from tests.references import feddistill


def check_exchange(now):
    total, holders = np.zeros((3, 3)), np.zeros(3)
    up, down = np.zeros((2, now.case.num_clients), int)
    for i, means in now.wanted["sent"].items():
        up[i], down[i] = 3 * len(means), 3 * now.wanted["taught"][i]
        for c, mean in means.items():
            total[c] += mean
            holders[c] += 1
    np.testing.assert_allclose(now.state.total.means, total, 1e-9, atol=1e-12)
    np.testing.assert_array_equal(now.state.total.holders, holders)
    np.testing.assert_array_equal(now.clients["numbers_up"], up)
    np.testing.assert_array_equal(now.clients["numbers_down"], down)


def new_clients(one, made):
    """They learn from everybody."""
    batches, (x, y, rate) = one.newcomers()
    teacher, start = feddistill.teachers(one.wanted[-1]["sent"]), one.case.initial()
    given = x, y, teacher, rate, one.settings["weight"]
    return [feddistill.train(start, own, *given)[0] for own in batches]


test_reference, test_contract = comparison(
    "feddistill",
    feddistill.run,
    settings={"weight": 3.0},
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    copies=0,
    check=check_exchange,
    new_clients=new_clients,
)


def test_a_class_has_a_teacher_from_half_a_client_on():
    found = mean_of(Predictions(np.full((3, 2), 0.9), np.array([0.4, 0.6, 1.8])))
    np.testing.assert_array_equal(found.holders, [False, True, True])
    np.testing.assert_allclose(found.means[1:], [[1.5, 1.5], [0.5, 0.5]], 1e-6)
