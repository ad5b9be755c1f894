"""Every algorithm has a comparison with its reference and the contract; options that need both."""

import importlib
from pathlib import Path

import pytest

import fedjax_pfl as pfl


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
