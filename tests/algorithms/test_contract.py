"""The shared suite on every registered method."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import CHECKS

# A check that needs programs of its own costs seconds of compiling. These share three; the others
# (one client alone, vmap, chunks) are marked slow, but for the methods named in WHOLE.
OWN = ("partial_participation", "divergence", "permutation", "no_recompilation")
QUICK = (*OWN, "settings_in_one_program", "stragglers")
WHOLE = ("fedavg", "feddwa")


def plays_anothers_round(cls):
    known = set(pfl.METHODS.values())
    return any(base in known and base.round is cls.round for base in cls.__mro__[1:])


def is_quick(name, cls, check):
    if name in WHOLE:
        return True
    return check in (OWN if plays_anothers_round(cls) else QUICK)


# One process for each method: its checks share compiled programs.
CASES = [
    pytest.param(
        name,
        check,
        marks=[
            pytest.mark.xdist_group(name),
            *([] if is_quick(name, cls, check) else [pytest.mark.slow]),
        ],
    )
    for name, cls in sorted(pfl.METHODS.items())
    for check in CHECKS
]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_contract(name, check):
    CHECKS[check](pfl.make_method(name))


def test_who_plays_anothers_round():
    shared = [name for name, cls in pfl.METHODS.items() if plays_anothers_round(cls)]
    assert {"fedavg_ft", "plga"} <= set(shared)
    assert not {"local", "fedavg", "feddwa", "waffle", "lga"} & set(shared)
