"""The epsilon of client-level differential privacy, and noise for an epsilon."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.core.client_privacy import client_releases
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.uploads import accounting

CLIENT = {"dp": "client", "dp_clip": 0.5, "dtype": "float32"}


def simulated(name="fedavg", rounds=3, settings=None, **options):
    federation = toy_federation(**(CLIENT | options))
    return pfl.simulate(pfl.make_algorithm(name), federation, rounds=rounds, settings=settings)


def cost(noise, count, rate=1.0, delta=1e-5):
    return accounting.epsilon([accounting.Release(noise, count, rate)], delta)


@pytest.mark.costly
def test_local_noise_costs_only_the_rounds_of_a_client():
    """FedDWA sends two models in a round: each is a release, in noise for an epsilon too."""
    result = simulated("feddwa", participation=0.6, dp_epsilon=3.0)
    counts = result.clients["participated"][0, 0].sum(0)
    assert len(set(counts.tolist())) > 1
    (noise,) = result.privacy["noise"]
    np.testing.assert_allclose(result.epsilons()[0], [cost(noise, 2 * n) for n in counts])
    assert 0.98 * 3.0 < cost(noise, 2 * 3) <= 3.0
    summary = result.summary()["privacy"]
    assert summary["unit"] == "client" and summary["sampling"] == "noise on every upload"
    assert "client-level differential privacy with epsilon" in str(result)


@pytest.mark.costly
def test_sums_are_amplified_by_sampling():
    options = CLIENT | {"dp_placement": "distributed", "participation": 0.6}
    result = simulated(dp_epsilon=3.0, sampling="poisson", **options)
    found, (noise,) = result.epsilons(), result.privacy["noise"]
    np.testing.assert_allclose(found, cost(noise, 3, 0.6), rtol=1e-6)
    assert (found <= 3.0).all() and (found > 0.98 * 3.0).all()
    assert "accounted as" not in result.summary()["privacy"]["sampling"]
    fixed = client_releases(pfl.make_algorithm("fedavg"), toy_federation(**options))
    assert fixed["rate"] == 0.6 and "accounted as" in fixed["sampling"]


@pytest.mark.costly
def test_noise_for_an_epsilon_swept_in_one_program():
    result = simulated(dp_epsilon=4.0, settings={"dp_epsilon": [1.0, 4.0]}, rounds=2)
    for setting, target in enumerate((1.0, 4.0)):
        epsilon = result.epsilons(setting)
        assert (epsilon <= target).all() and (epsilon > 0.98 * target).all()
    noise = result.privacy["noise"]
    assert noise[0] > 2 * noise[1] > 0


def test_absent_clients_that_upload_spend_what_others_do():
    """SPFL's routine trains all clients."""
    federation = toy_federation(**CLIENT, dp_noise=4.0, participation=0.6)
    for name, local in (("spfl", False), ("feddwa", True)):
        assert client_releases(pfl.make_algorithm(name), federation)["local"] == local
