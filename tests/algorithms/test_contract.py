"""The shared suite on every registered method."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import CHECKS

# What a method has of its own where it plays another one's round: the rest is marked slow.
OWN = ("partial_participation", "divergence", "permutation", "no_recompilation")


def plays_anothers_round(cls):
    known = set(pfl.METHODS.values())
    return any(base in known and base.round is cls.round for base in cls.__mro__[1:])


# One process for each method: its checks share compiled programs.
CASES = [
    pytest.param(
        name,
        check,
        marks=[
            pytest.mark.xdist_group(name),
            *([pytest.mark.slow] if plays_anothers_round(cls) and check not in OWN else []),
        ],
    )
    for name, cls in sorted(pfl.METHODS.items())
    for check in CHECKS
]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_contract(name, check):
    CHECKS[check](pfl.make_method(name))


def test_most_methods_play_the_whole_suite():
    shared = [name for name, cls in pfl.METHODS.items() if plays_anothers_round(cls)]
    assert {"fedavg_ft", "plga"} <= set(shared)
    assert not {"local", "fedavg", "feddwa", "waffle", "lga"} & set(shared)
