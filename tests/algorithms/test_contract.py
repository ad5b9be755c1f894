"""The shared suite on every registered method."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import CHECKS

# One process for each method: its checks share compiled programs.
CASES = [
    pytest.param(name, check, marks=pytest.mark.xdist_group(name))
    for name in sorted(pfl.METHODS)
    for check in CHECKS
]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_contract(name, check):
    CHECKS[check](pfl.make_method(name))
