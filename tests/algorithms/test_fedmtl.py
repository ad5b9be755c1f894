"""FedMTL against its reference, its new clients, and layers that are private."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import assert_models
from tests.engine.finals import final_in
from tests.references import fedmtl
from tests.references.network import combine


def algorithm(**settings):
    return pfl.make_algorithm("fedmtl", settings)


def check_tasks_and_new_clients(one):
    """The only member of a round has no other tasks; new clients train beside all clients."""
    case = one.case
    if one.variant == "late":
        assert [len(cohort) for cohort in case.cohorts] == [1, 1, 4]
    if one.pattern != "full-vmap":
        return
    final = final_in(one.states[-1], one.algorithm, case.federation, case.rounds)
    new = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    last = one.wanted[-1]["personalized"]
    start, options = combine([0.2] * 5, last), one.settings.values()
    wanted = [
        fedmtl.column(start, last, own, case.x, case.y, case.rates[-1], *options)
        for own in case.batches("personalize", starts=case.everyone)[-1]
    ]
    assert_models(new, wanted, "new clients")


STRONG = {"coupling": 0.7, "ridge": 0.05}
LATE = {"participation": 1.0, "scored": False, "stragglers": {1: 1, 2: 1, 3: 1, 4: 2}}
test_reference, test_contract = comparison(
    "fedmtl",
    fedmtl.run,
    variants={"strong": STRONG, "default": {}, "late": Variant(STRONG, options=LATE)},
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    copies=False,
    finish=check_tasks_and_new_clients,
)


def test_remarks():
    federation = toy_federation()
    assert algorithm(coupling=0).remarks(federation)[-1:] == ["coupling is 0: trained locally"]
    size = sum(leaf.size for leaf in jax.tree.leaves(federation.model_shapes["params"]))
    (usual,) = algorithm().remarks(federation)
    assert f"coupling is 1e-{len(str(size)) + 1:02}" in usual and "nearly" in usual
    assert not algorithm(coupling=0.1).remarks(federation)


def test_share_of_no_layer_is_refused():
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
def test_models_are_those_that_were_sent():
    before, after = states_of(algorithm(), toy_federation(validation_size=0, withheld=(1,)), 1)
    leaves = (state.models["params"]["head"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*leaves).any(axis=1), [1, 0, 1, 1, 1])
