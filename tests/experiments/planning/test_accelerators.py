"""Every algorithm's program compiles for devices that need not be there."""

import re
import subprocess
import sys

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


@pytest.mark.costly
def test_ragged_clients_and_seeds_one_by_one_on_all_chips():
    """With long locations libtpu would not come to an end; in a process, whose stack they are."""
    target("v5e:2x2")
    words = ["--target=v5e:2x2", "--mesh=clients:4", "--preset=digits_quick", "--num_seeds=2"]
    command = [sys.executable, "-m", "experiments.plan", *words, "--algorithms=local"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert re.search(r"\nlocal +yes", text)
