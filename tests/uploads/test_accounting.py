"""Epsilon of known settings, to the digits that dp-accounting gives, and its monotonicity."""

import math

import numpy as np
import pytest

from fedjax_pfl.uploads.accounting import Release, epsilon, noise_for, training_releases
from fedjax_pfl.uploads.clipping import split_noise
from fedjax_pfl.utils.errors import InputError

pytest.importorskip("dp_accounting")

# (z, q, steps, delta): RDP, PLD
GOLDEN = {
    (1.0, 0.01, 1000, 1e-5): (2.1014, 1.8282),
    (1.1, 256 / 60000, 14062, 1e-5): (2.5966, 2.3817),
    (5.0, 1.0, 100, 1e-3): (8.4165, 7.5813),
    (1.0, 0.1, 100, 1e-3): (5.6551, 4.7844),
}


@pytest.mark.parametrize(("z", "q", "steps", "delta"), GOLDEN)
def test_golden(z, q, steps, delta):
    rdp, pld = GOLDEN[z, q, steps, delta]
    for accountant, wanted, rtol in (("rdp", rdp, 5e-5), ("pld", pld, 6e-4)):
        ours = epsilon([Release(z, steps, q)], delta, accountant)
        np.testing.assert_allclose(ours, wanted, rtol, err_msg=accountant)


def test_exact_gaussian():
    np.testing.assert_allclose(epsilon([Release(5, 100)], 1e-3), 7.58128, rtol=1e-3)


def test_adaptive_clipping_costs_what_is_stated():
    """The updates and the sum of `next_bound` (sensitivity 1/2) together, as one Gaussian."""
    z, deviation = 1.9, 1.0  # of 20 members
    updates = float(split_noise(z, deviation))
    joint = ((1 / updates) ** 2 + (0.5 / deviation) ** 2) ** -0.5
    true, wrong = (epsilon([Release(s, 100)], 1e-3, "rdp") for s in
                   (joint, ((1 / updates) ** 2 + (1 / deviation) ** 2) ** -0.5))  # fmt: skip
    np.testing.assert_allclose(true, epsilon([Release(z, 100)], 1e-3, "rdp"), rtol=1e-5)
    assert wrong > 2 * true  # of a sum with sensitivity 1


def test_order_and_merging():
    apart = [Release(2, 3, 0.1), Release(1, 5, 0.1), Release(2, 4, 0.1)]
    together = [Release(1, 5, 0.1), Release(2, 7, 0.1)]
    assert epsilon(apart, 1e-5) == epsilon(together, 1e-5)


@pytest.mark.costly
def test_epsilon_falls_in_noise_and_grows_in_steps():
    cost = [epsilon([Release(z, 50, 0.1)], 1e-3) for z in (0.8, 1.6, 3.2)]
    assert cost[0] > cost[1] > cost[2]
    grown = [epsilon([Release(1.6, n, 0.1)], 1e-3) for n in (0, 10, 100)]
    assert grown[0] == 0 and grown[0] < grown[1] < grown[2]
    assert epsilon([Release(0, 1)], 1e-3) == math.inf
    assert epsilon([Release(0, 1), Release(1, 1)], 1e-3) == math.inf


def test_a_part_of_a_minibatch_counts_as_one():
    plan = {"rates": [0.5], "sizes": [8], "per_batch": 2, "most": None, "adapted": []}
    assert training_releases(plan, 2.0, 0, 5) == [Release(2.0 * (1 / math.sqrt(2)), 3, 0.5)]


@pytest.mark.costly
@pytest.mark.parametrize(("accountant", "wanted"), [("pld", 1.6739), ("rdp", 1.8574)])
def test_calibration(accountant, wanted):
    z = noise_for(2.0, 1e-3, 100, 0.1, accountant)
    np.testing.assert_allclose(z, wanted, rtol=4e-3)
    assert epsilon([Release(z, 100, 0.1)], 1e-3, accountant) <= 2.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epsilon([Release(1, 1)], 0.0), "dp_delta"),
        (lambda: epsilon([Release(1, 1)], 1e-5, "moments"), "accountant"),
        (lambda: epsilon([Release(1, 1, 1.5)], 1e-5), "sampling_rate"),
        (lambda: noise_for(0.0, 1e-5, 10), "dp_epsilon"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()
