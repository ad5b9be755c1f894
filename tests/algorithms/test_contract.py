"""Every algorithm has a comparison with its reference and the contract; options that need both."""

import importlib
from pathlib import Path

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.checks import CHECKS
from tests.algorithms.comparison import QUICK_CHECKS

# Options that change which clients work in a round, on which samples, or what a server does.
OPTIONS = {
    "local": {"participants": "sampled"},
    "cfl": {"mean_below": 1e9, "largest_above": 0, "first_split": 0},  # splits in every round
}


@pytest.mark.costly
@pytest.mark.parametrize("check", QUICK_CHECKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_contract_of_an_option(name, check):
    CHECKS[check](pfl.make_algorithm(name, OPTIONS[name]))


def compared_or_checked():
    """Algorithms with a comparison, and those with the contract; see `comparison`."""
    found = {"pattern": set(), "name": set()}
    for file in Path(__file__).parent.glob("test_*.py"):
        module = importlib.import_module(f"tests.algorithms.{file.stem}")
        for test in vars(module).values():
            if cases := getattr(test, "cases", None):
                (kind, _), make = cases
                row = make.__self__
                found[kind] |= {v.algorithm or row.algorithm for v in row.variants.values()}
    return found


@pytest.mark.parametrize("kind", ["pattern", "name"], ids=["comparison", "contract"])
def test_every_algorithm_has_a_comparison_and_the_contract(kind):
    assert sorted(set(pfl.core.ALGORITHMS) - compared_or_checked()[kind]) == []
