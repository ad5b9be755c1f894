"""The shared suite on every registered method."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import CHECKS


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", sorted(pfl.METHODS))
def test_contract(name, check):
    CHECKS[check](pfl.make_method(name))
