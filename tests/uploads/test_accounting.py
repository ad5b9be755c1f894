"""Epsilon against dp-accounting and exact formulas, its monotonicity, and noise for an epsilon."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

import fedjax_pfl as pfl
from fedjax_pfl.results import privacy
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.uploads import accounting
from fedjax_pfl.uploads.accounting import Release, epsilon, noise_for_each, training_releases
from fedjax_pfl.uploads.clipping import split_noise
from fedjax_pfl.utils.errors import InputError

dp = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld")

GOLDEN = {  # (z, q, steps, delta)
    (1.0, 0.01, 1000, 1e-5): 1.8282,
    (1.1, 256 / 60000, 14062, 1e-5): 2.3817,
    (5.0, 1.0, 100, 1e-3): 7.5813,
    (1.0, 0.1, 100, 1e-3): 4.7844,
}


@pytest.mark.parametrize(("z", "q", "steps", "delta"), GOLDEN)
def test_golden(z, q, steps, delta):
    ours = epsilon([Release(z, steps, q)], delta)
    np.testing.assert_allclose(ours, GOLDEN[z, q, steps, delta], 6e-4)


def exact_gaussian(z, count, delta):
    """Epsilon of `count` Gaussian releases (Balle and Wang, 2018, theorem 8)."""
    mu = math.sqrt(count) / z

    def excess(eps):
        return ndtr(mu / 2 - eps / mu) - math.exp(eps) * ndtr(-mu / 2 - eps / mu) - delta

    return brentq(excess, 0, 500)


def library(*releases):
    """Epsilon of (event, count) at delta 1e-3, straight from dp-accounting."""
    ledger = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, accounting.COARSE)
    for event, count in releases:
        ledger.compose(event, count)
    return ledger.get_epsilon(1e-3)


def sampled(q, z):
    return dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))


@pytest.mark.parametrize(
    ("z", "q", "count", "delta"),
    [
        (5.0, 1.0, 4, 0.01),
        pytest.param(0.7, 1.0, 1, 1e-5, marks=pytest.mark.costly),
        pytest.param(5.0, 1.0, 100, 1e-3, marks=pytest.mark.costly),
        pytest.param(1.0, 0.1, 100, 1e-3, marks=pytest.mark.costly),
        pytest.param(0.8, 0.5, 20, 1e-6, marks=pytest.mark.costly),
    ],
)
def test_coarse_grid_rounds_up(z, q, count, delta, monkeypatch):
    coarse = epsilon([Release(z, count, q)], delta)
    monkeypatch.setattr(accounting, "FEW", 0)
    accounting._epsilon.cache_clear()
    fine = epsilon([Release(z, count, q)], delta)
    accounting._epsilon.cache_clear()
    assert fine < coarse < 1.005 * fine
    if q == 1:
        assert exact_gaussian(z, count, delta) < fine < 1.001 * exact_gaussian(z, count, delta)


def stated(plan, counts, setting=0):
    """What a result states of clients with so many rounds or steps in each of their rounds."""
    counts = np.asarray(counts)[None, None].repeat(2, axis=1)
    clients = {"participated": counts > 0, "local_steps": counts}
    made = {"delta": 1e-3, "noise": [1.5, 2.5]} | plan
    return privacy.epsilons(SimpleNamespace(privacy=made, clients=clients), setting)[0]


CLIENTS = {"unit": "client", "per_round": 2, "local": True, "rate": 1.0}
SAMPLES = {"unit": "sample", "sizes": [8, 3], "rates": [0.5, 1.0], "per_batch": 1, "most": None,
           "adapted": []}  # fmt: skip
GAUSSIAN, TWICE = dp.GaussianDpEvent(1.5), dp.GaussianDpEvent(1.5 / 2**0.5)


@pytest.mark.parametrize(
    ("plan", "counts", "wanted"),
    [
        pytest.param(CLIENTS, [[1, 1], [1, 0], [1, 0]], [[(TWICE, 3)], [(TWICE, 1)]], id="local"),
        pytest.param(
            CLIENTS | {"local": False, "rate": 0.4, "per_round": 1},
            [[1, 0], [0, 0], [1, 0]],
            [[(sampled(0.4, 1.5), 3)]] * 2,
            id="distributed",
        ),
        pytest.param(
            CLIENTS | {"local": False, "rate": 0.4},
            [[1, 0], [0, 0], [1, 0]],
            [[(sampled(0.4, 1.5 / 2**0.5), 3)]] * 2,
            id="two-uploads-of-one-cohort",
        ),
        pytest.param(
            SAMPLES,
            [[4, 0], [4, 3]],
            [[(sampled(0.5, 1.5), 8)], [(GAUSSIAN, 3)]],
            id="fixed-minibatches",
        ),
        pytest.param(
            SAMPLES | {"most": 5},
            [[4, 0], [4, 3]],
            [[(dp.TruncatedSubsampledGaussianDpEvent(8, 0.5, 5, 1.5), 8)], [(GAUSSIAN, 3)]],
            id="poisson-minibatches",
            marks=pytest.mark.costly,
        ),
        pytest.param(
            SAMPLES | {"per_batch": 2, "adapted": [[[0.25, 0.5], None, [2, 0]]]},
            [[4, 0], [4, 4]],
            [
                [(sampled(0.5, 1.5 / 2**0.5), 4), (sampled(0.25, 1.5), 2)],
                [(dp.GaussianDpEvent(1.5 / 2**0.5), 2)],
            ],
            id="two-gradients-and-adaptation",
            marks=pytest.mark.costly,
        ),
    ],
)
def test_stated_epsilons_are_those_of_the_library(plan, counts, wanted):
    np.testing.assert_allclose(stated(plan, counts), [library(*each) for each in wanted], 1e-9)


def test_stated_epsilon_of_a_swept_setting_is_that_of_its_noise():
    found = stated(CLIENTS | {"per_round": 1}, [[1], [1]], setting=1)
    np.testing.assert_allclose(found, library((dp.GaussianDpEvent(2.5), 2)), 1e-9)


def test_adaptive_clip_costs_as_much_as_its_two_releases():
    """Of updates, and of the sum of `next_bound`, which one client changes by at most 1/2."""
    updates = float(split_noise(1.9, 1.0))
    both = library((dp.GaussianDpEvent(updates), 4), (dp.GaussianDpEvent(1.0 / 0.5), 4))
    np.testing.assert_allclose(epsilon([Release(1.9, 4)], 1e-3), both, rtol=2e-3)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("options", "event", "releases"),
    [
        ({"dp": "client"}, GAUSSIAN, 1),
        ({"dp": "client", "dp_placement": "distributed", "participation": 0.6,
          "sampling": "poisson"}, sampled(0.6, 1.5), 1),
        ({"dp": "sample", "batch_order": "fresh", "batch_size": 2}, sampled(0.5, 1.5), 2),
    ],
    ids=["local", "distributed", "sample"],
)  # fmt: skip
def test_lengthened_and_resumed_runs_cost_all_of_their_rounds(options, event, releases, tmp_path):
    private = {"dp_clip": 0.5, "dp_noise": 1.5, "dp_delta": 1e-3, "dtype": "float32"}
    federation = toy_federation((4, 4, 4, 4, 4), validation_size=0, **private, **options)
    simulation = pfl.Simulation(pfl.make_algorithm("fedavg"), federation)
    for rounds in (1, 3):
        found = simulation.run(rounds).epsilons()
        np.testing.assert_allclose(found, library((event, releases * rounds)), 1e-9)
    stored = pfl.Checkpoints(tmp_path, extendable=True)
    for rounds in (2, 3):
        resumed = pfl.Simulation(pfl.make_algorithm("fedavg"), federation)
        last = resumed.run(rounds, checkpoints=stored)
    np.testing.assert_array_equal(last.epsilons(), found)


def test_order_and_merging():
    apart = [Release(2, 3, 0.1), Release(1, 5, 0.1), Release(2, 4, 0.1)]
    together = [Release(1, 5, 0.1), Release(2, 7, 0.1)]
    assert epsilon(apart, 1e-5) == epsilon(together, 1e-5)


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


def test_calibration():
    (z,) = noise_for_each(2.0, 1e-3, [[Release(1.0, 100, 0.1)]])
    np.testing.assert_allclose(z, 1.6739, rtol=4e-3)
    assert epsilon([Release(z, 100, 0.1)], 1e-3) <= 2.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epsilon([Release(1, 1)], 0.0), "dp_delta"),
        (lambda: epsilon([Release(1, 1, 1.5)], 1e-5), "sampling_rate"),
        (lambda: noise_for_each(0.0, 1e-5, [[Release(1.0, 10)]]), "dp_epsilon"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()
