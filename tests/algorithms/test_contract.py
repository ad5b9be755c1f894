"""The shared suite on every registered algorithm; each of them has a reference."""

import re
from pathlib import Path

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.suite import CHECKS
from tests.algorithms.harness import marked

# These run in one program. The others (one client alone, vmap, chunks, stragglers, ...) need
# programs of their own and are slow, for the algorithms in WHOLE but thorough.
QUICK = (
    "partial_participation",
    "permutation",
    "divergence",
    "settings_in_one_program",
    "no_recompilation",
)
WHOLE = ("feddwa",)


CASES = [
    marked((name, check), check in QUICK, name in WHOLE)
    for name in sorted(pfl.ALGORITHMS)
    for check in CHECKS
]


# Options that change which clients work in a round, on which samples, or what a server does.
OPTIONS = {
    "local": {"who": "drawn"},
    "cfl": {"mean_below": 1e9, "largest_above": 0, "first_split": 0},  # splits in every round
}
VARIANTS = [
    pytest.param(name, check, marks=() if check in QUICK else pytest.mark.slow)
    for name in OPTIONS
    for check in CHECKS
]


@pytest.mark.parametrize(("name", "check"), VARIANTS)
def test_contract_of_an_option(name, check):
    CHECKS[check](pfl.make_algorithm(name, OPTIONS[name]))


@pytest.mark.parametrize(("name", "check"), CASES)
def test_contract(name, check):
    CHECKS[check](pfl.make_algorithm(name))


def test_every_algorithm_has_a_reference():
    """A test file that imports one makes the algorithm."""
    texts = [file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py")]
    compared = "".join(text for text in texts if "\nfrom tests.references import " in text)
    made = set(re.findall(r'"(\w+)"', compared))
    assert sorted(set(pfl.ALGORITHMS) - made) == []
