"""Remarks on hyperparameters that switch a method off, as some libraries have them by default."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("fedprox", "proximal_weight", "proximal_weight is 0: trained as FedAvg"),
        ("moon", "mu", "mu is 0: trained as FedAvg"),
        ("fedlc", "tau", "tau is 0: trained as FedAvg"),
        ("fedntd", "beta", "beta is 0: trained as FedAvg"),
        ("fedsam", "rho", "rho is 0: trained as FedAvg"),
        ("ditto", "proximal_weight", "proximal_weight is 0: what is scored was trained locally"),
        ("mrmtl", "proximal_weight", "proximal_weight is 0: trained locally"),
        ("feddbe", "kappa", "kappa is 0: features are not pulled to a common mean"),
        ("fedcac", "tau", "tau is 0: trained as FedAvg"),
        ("apple", "relation_rate", "relation_rate is 0: relations stay as they began"),
    ],
)
def test_remark_on_a_method_that_is_off(name, key, said):
    for settings, expected in (({}, []), ({key: 0}, [said])):
        algorithm = pfl.make_algorithm(name, settings)
        assert algorithm.remarks(algorithm.prepare(toy_federation())) == expected
