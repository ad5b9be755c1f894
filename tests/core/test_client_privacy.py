"""The epsilon of client-level differential privacy, and noise for an epsilon."""

from dataclasses import replace

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.core.client_privacy import client_releases
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.uploads import accounting

CLIENT = {"dp": "client", "dp_clip": 0.5, "dtype": "float32"}


def plan_of(name, federation):
    algorithm = pfl.make_algorithm(name)
    return client_releases(algorithm, federation, round_facts(one_run(algorithm), federation))


def test_sums_are_amplified_by_sampling():
    """Fixed cohorts are accounted as those of Poisson sampling."""
    options = CLIENT | {"dp_placement": "distributed", "participation": 0.6}
    for sampling in ("fixed", "poisson"):
        federation = toy_federation(sampling=sampling, **options)
        plan = plan_of("fedavg", federation)
        assert plan["rate"] == 0.6
        assert ("accounted as" in plan["sampling"]) == (sampling == "fixed")


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("feddwa", {}),  # two uploads in a round
        ("fedavg", {"dp_placement": "distributed", "participation": 0.6, "sampling": "poisson"}),
    ],
)
def test_noise_for_an_epsilon_swept_in_one_program(name, options):
    federation = toy_federation(dp_epsilon=4.0, **CLIENT | options)
    settings = {"dp_epsilon": [1.0, 4.0]}
    result = pfl.simulate(pfl.make_algorithm(name), federation, 2, settings=settings)
    for setting, target in enumerate((1.0, 4.0)):
        epsilon = result.epsilons(setting)
        assert (epsilon <= target).all() and (epsilon > 0.98 * target).all()
    noise = result.privacy["noise"]
    assert noise[0] > 2 * noise[1] > 0
    assert "client-level differential privacy with epsilon" in str(result)


def test_the_cut_of_poisson_cohorts_is_accounted():
    """More clients may be drawn than a cohort has places for."""
    options = CLIENT | {"dp_placement": "distributed", "sampling": "poisson"}
    plan = plan_of("fedavg", toy_federation((2,) * 40, participation=0.1, **options))
    clients, most = plan["cut"]
    assert clients == 40 and 4 < most < 40
    (release,) = accounting.upload_releases({**plan, "cut": [40, 5]}, 0.7, 50)
    assert release.cut == (40, 5)
    uncut = accounting.epsilon([replace(release, cut=None)], 1e-5)
    assert accounting.epsilon([release], 1e-5) > 1.01 * uncut


def test_absent_clients_that_upload_spend_what_others_do():
    """SPFL's routine trains all clients."""
    federation = toy_federation(**CLIENT, dp_noise=4.0, participation=0.6)
    for name, local in (("spfl", False), ("feddwa", True)):
        plan = plan_of(name, federation)
        assert plan["local"] == local
