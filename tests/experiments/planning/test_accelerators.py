"""Every algorithm's program compiles for devices that need not be there; slow but for one."""

import pytest

from experiments.planning import targets
from fedjax_pfl.errors import InputError
from tools import accelerators
from tools.accelerator_tables import SMALL

CASES = {case.name: case for case in accelerators.cases()}
QUICK = "small/v5e-2x2/fedavg"
ON_CHIP = 128 * 2**20  # a v5e keeps so many bytes of temporaries beside its memory


@pytest.mark.parametrize(
    "name",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_a_program_for_an_accelerator(name):
    case = CASES[name]
    try:
        targets.check_installed(targets.parse(case.target))
    except InputError as error:
        pytest.skip(str(error))
    plan = accelerators.compiled(case)
    assert plan.error is None and plan.fits, plan.said
    assert plan.costs.steps > 0
    if case.target != "h100":
        assert plan.rounds_per_second > 0
    if case.size != SMALL:
        total = plan.planned["total"]
        assert plan.estimated > 0.85 * total
        if case.size.startswith("cnn"):
            on_chip = 0 if case.target == "h100" else ON_CHIP
            assert plan.estimated < 1.15 * total + on_chip
