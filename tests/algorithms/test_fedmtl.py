"""FedMTL against its reference, its limits, and its new clients."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.engine.finals import final_in
from tests.references import fedmtl
from tests.references.network import combine

VARIANTS = {"strong": {"coupling": 0.7, "ridge": 0.05}, "default": {}}


def algorithm(**settings):
    return pfl.make_algorithm("fedmtl", settings)


@over(PATTERNS, [("partial-map", "strong"), ("full-vmap", "default")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    common = case.common()
    wanted = fedmtl.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_models(state.models, models["personalized"], "personalized")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
    if pattern == "partial-map":
        final = final_in(states[-1], algorithm(**settings), case.federation, case.rounds)
        new = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
        last = wanted[-1]["personalized"]
        start = combine([0.2] * 5, last)
        personal = [
            fedmtl.column(start, last, batches, case.x, case.y, case.rates[-1], 0.7, 0.05)
            for batches in case.batches("personalize", starts=case.everyone)[-1]
        ]
        assert_models(new, personal, "new clients")


@pytest.mark.thorough
def test_the_usual_strength_is_by_the_digits_of_the_size():
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


@pytest.mark.thorough
def test_without_regularization_it_is_local_training():
    federation = toy_federation(validation_size=0, local_epochs=2)
    ours, local = (
        states_of(one, federation, 3)[-1]
        for one in (
            algorithm(coupling=0, ridge=0), pfl.make_algorithm("local", {"participants": "sampled"})
        )
    )  # fmt: skip
    assert_close(ours.models, local.models, "own", 1e-12)
    assert algorithm(coupling=0).remarks(federation)[-1:] == ["coupling is 0: trained locally"]
    assert not algorithm().remarks(federation)


def test_some_layers_are_shared():
    algorithm().check(toy_federation(share="body"))
    with pytest.raises(pfl.InputError, match="share is 'none'"):
        algorithm().check(toy_federation(share="none"))


@pytest.mark.thorough
def test_private_layers_are_not_regularized():
    federation = toy_federation((6, 4), (3, 2), share="body", batch_size=6, local_steps=1)
    strong, free = (
        states_of(algorithm(coupling=c, ridge=c), federation, 1)[1].models["params"]
        for c in (0.7, 0.0)
    )
    assert_close(strong["head"], free["head"], "head", 1e-12)
    assert not np.array_equal(strong["fc_0"]["kernel"], free["fc_0"]["kernel"])


@pytest.mark.thorough
def test_absent_members_are_no_tasks():
    """The first client is by itself until others are on time, and the last is not among these."""
    case, settings = Case(scored=False, stragglers={1: 1, 2: 1, 3: 1, 4: 2}), VARIANTS["strong"]
    assert case.cohorts == [[0], [0], [0, 1, 2, 3]]
    wanted = fedmtl.run(case.initial(), case.clients(), 3, **case.common(), **settings)
    for state, models in zip(case.states_of(algorithm(**settings))[1:], wanted, strict=True):
        assert_models(state.models, models["personalized"], "personalized")


def test_models_are_those_that_were_sent():
    before, after = states_of(algorithm(), toy_federation(validation_size=0, withheld=(1,)), 1)
    leaves = (state.models["params"]["head"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*leaves).any(axis=1), [1, 0, 1, 1, 1])
