"""The shared checks on every registered algorithm; each of them has a reference."""

import importlib
import re
from pathlib import Path

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.checks import CHECKS
from tests import references
from tests.algorithms.harness import marked

# These run in one program. The others (one client, vmap, chunks, stragglers, ...) need programs of
# their own: they are slow, and thorough for the algorithms in WHOLE.
QUICK = (
    "partial_participation",
    "permutation",
    "divergence",
    "declared_reads",
    "others_data",
    "settings_in_one_program",
    "no_recompilation",
)
THOROUGH = (*QUICK, "uploads", "padding")
WHOLE = ("feddwa",)
# Most of their code is another algorithm's: their checks are thorough.
ALIKE = {
    "fedadagrad": "fedadam",
    "fedavg_sync": "fedavg_async",
    "fedprox_ft": "fedprox",
    "fedyogi": "fedadam",
    "heurfedamp": "fedamp",
    "heurpfedla": "pfedla",
    "lg_fedavg": "fedper",
    "plga": "lga",
    "spfl_w": "spfl",
}

# With these hyperparameters the comparison with the reference compiles the same program.
SHARED = {
    "fedavg_ft": {"fine_tune_epochs": 2},
    "feddwa": {"score_guidance": True},
    "fedrep": {"head_epochs": 3, "weighting": "size", "final_head_epochs": 2},
    "ifca": {"clusters": 3},
    "l2c": {"neighbours": 2},
    "pfedla": {"embedding_size": 4, "hidden_size": 6},
    "spfl": {"gamma": 2},
}

CASES = [
    marked((name, check), check in QUICK and name not in ALIKE, check in THOROUGH or name in WHOLE)
    for name in sorted(pfl.core.ALGORITHMS)
    for check in CHECKS
]


# Options that change which clients work in a round, on which samples, or what a server does.
OPTIONS = {
    "local": {"participants": "sampled"},
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
    CHECKS[check](pfl.make_algorithm(name, SHARED.get(name)))


def is_quick(test):
    """Whether one of its cases at least is in the quick suite."""
    late = {"slow", "thorough"}
    marks = getattr(test, "pytestmark", [])
    if late & {mark.name for mark in marks}:
        return False
    lists = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    known = [[{mark.name for mark in getattr(v, "marks", ())} for v in values] for values in lists]
    return all(any(not late & names for names in values) for values in known)


COMPARED = [
    file.stem
    for file in sorted(Path(__file__).parent.glob("test_*.py"))
    if "\nfrom tests.references import " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("file", COMPARED)
def test_the_quick_suite_compares_every_algorithm(file):
    """A comparison is called test_reference, or by the algorithm's or its reference's name."""
    module = importlib.import_module(f"tests.algorithms.{file}")
    files = {path.stem for path in Path(references.__path__[0]).glob("*.py")}
    known = {"reference", *pfl.core.ALGORITHMS, *files}
    names = {f"test_{name}" for name in known} & set(vars(module))
    assert any(is_quick(getattr(module, name)) for name in names)


def test_every_algorithm_has_a_reference():
    """A test file that imports one makes the algorithm."""
    texts = [file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py")]
    compared = "".join(text for text in texts if "\nfrom tests.references import " in text)
    made = set(re.findall(r'"(\w+)"', compared))
    assert sorted(set(pfl.core.ALGORITHMS) - made) == []
