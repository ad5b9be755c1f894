"""FedMTL against its reference, its default strength, and its new clients."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedmtl import State
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import Case, assert_models, stack
from tests.engine.finals import final_in
from tests.references import fedmtl
from tests.references.network import combine

STRONG = {"coupling": 0.7, "ridge": 0.05}


def algorithm(**settings):
    return pfl.make_algorithm("fedmtl", settings)


test_reference, test_contract = comparison(
    "fedmtl",
    fedmtl.run,
    variants={
        "strong": STRONG,
        "default": {},
        # The first client is by itself until others are on time, and the last is not among these.
        "late": Variant(
            STRONG, options={"participation": 1.0, "stragglers": {1: 1, 2: 1, 3: 1, 4: 2}}
        ),
    },
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    copies=False,
)


@pytest.mark.costly
def test_personalize_starts_from_the_mean_and_stays_near_the_last_models():
    case = Case()
    models = [jax.tree.map(lambda w, i=i: w + i, case.initial()) for i in range(case.num_clients)]
    final = final_in(State(stack(models)), algorithm(**STRONG), case.federation, case.rounds)
    new = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    start = combine([0.2] * 5, models)
    personal = [
        fedmtl.column(start, models, batches, case.x, case.y, case.rates[-1], 0.7, 0.05)
        for batches in case.batches("personalize", starts=case.everyone)[-1]
    ]
    assert_models(new, personal, "new clients")


@pytest.mark.costly
def test_default_coupling_depends_on_the_size_of_the_network():
    """A network of 43 parameters: 1e-3."""
    federation = toy_federation(validation_size=0, local_steps=2)
    usual, given, other = (
        states_of(algorithm(**settings), federation, 2)[-1].models
        for settings in ({}, {"coupling": 1e-3, "ridge": 1e-3}, {"coupling": 1e-4, "ridge": 1e-3})
    )
    assert sum(leaf[0].size for leaf in jax.tree.leaves(usual)) == 43
    assert_close(usual, given, "1e-3", 1e-12)
    with pytest.raises(AssertionError):
        assert_close(usual, other, "1e-4", 1e-12)


def test_remarks_without_regularization():
    federation = toy_federation()
    assert algorithm(coupling=0).remarks(federation)[-1:] == ["coupling is 0: trained locally"]
    assert not algorithm().remarks(federation)


def test_check_needs_shared_layers():
    algorithm().check(toy_federation(share="body"))
    with pytest.raises(pfl.InputError, match="share is 'none'"):
        algorithm().check(toy_federation(share="none"))


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
def test_models_of_others_are_uploads():
    before, after = states_of(algorithm(), toy_federation(validation_size=0, withheld=(1,)), 1)
    leaves = (state.models["params"]["head"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*leaves).any(axis=1), [1, 0, 1, 1, 1])
