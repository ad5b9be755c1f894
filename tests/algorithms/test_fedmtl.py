"""FedMTL against its reference, its new clients, and layers that are private."""

import numpy as np
import pytest

from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import maker
from tests.references import fedmtl
from tests.references.network import combine

algorithm = maker("fedmtl")


def check_late(one):
    """The only member of a round has no other tasks."""
    if one.variant == "late":
        assert [len(cohort) for cohort in one.case.cohorts] == [1, 1, 4]


def new_clients(one, made):
    """They train beside all clients."""
    last, (batches, given) = one.wanted[-1]["personalized"], one.newcomers()
    start = combine([0.2] * 5, last)
    return [fedmtl.column(start, last, own, *given, *one.settings.values()) for own in batches]


STRONG = {"coupling": 0.7, "ridge": 0.05}
LATE = {"participation": 1.0, "scored": False, "stragglers": {1: 1, 2: 1, 3: 1, 4: 2}}
test_reference, test_contract = comparison(
    "fedmtl",
    fedmtl.run,
    variants={"strong": STRONG, "default": {}, "late": Variant(STRONG, options=LATE)},
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    finish=check_late,
    new_clients=new_clients,
)


@pytest.mark.costly
def test_private_layers_are_not_regularized():
    federation = toy_federation((6, 4), (3, 2), share="body", batch_size=6, local_steps=1)
    strong, free = (
        states_of(algorithm(coupling=c, ridge=c), federation, 1)[1].models["params"]
        for c in (0.7, 0.0)
    )
    assert_close(strong["head"], free["head"], "head", 1e-12)
    assert not np.array_equal(strong["fc_0"]["kernel"], free["fc_0"]["kernel"])


@pytest.mark.costly
def test_models_are_those_that_were_sent():
    before, after = states_of(algorithm(), toy_federation(validation_size=0, withheld=(1,)), 1)
    leaves = (state.models["params"]["head"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*leaves).any(axis=1), [1, 0, 1, 1, 1])
