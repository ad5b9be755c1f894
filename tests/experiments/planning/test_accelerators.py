"""Every algorithm's program compiles for devices that need not be there."""

import pytest

from experiments.planning import targets
from fedjax_pfl.utils.errors import InputError
from tools import accelerators

CASES = {case.name: case for case in accelerators.cases()}


def target(name):
    """The target, where its compiler is installed."""
    result = targets.parse(name)
    try:
        targets.check_installed(result)
    except InputError as error:
        pytest.skip(str(error))
    return result


@pytest.mark.costly
@pytest.mark.parametrize("name", CASES)
def test_a_program_for_an_accelerator(name):
    case = CASES[name]
    target(case.target)
    result = accelerators.compiled(case)
    assert result.error is None and result.fits, result.message
    assert result.costs.steps > 0
    if case.target != "h100":
        assert result.rounds_per_second > 0
