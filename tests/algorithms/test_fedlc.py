"""FedLC against its reference, and its new clients."""

import jax

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_models
from tests.engine.finals import final_in
from tests.references import fedlc


def check_new_clients(one):
    """They train with margins from the server's model."""
    if one.pattern != "full-vmap":
        return
    case, final = one.case, final_in(one.states[-1], one.algorithm, one.case.federation, 3)
    new = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    setting = case.setting(
        initial=one.wanted[-1]["global"],
        rounds=1,
        batches=case.batches("personalize")[-1:],
        learning_rate=case.rates[-1:],
    )
    wanted = [
        fedlc.run(setting.but(cohorts=[[i]]), **one.options)[0]["global"]
        for i in range(case.num_clients)
    ]
    assert_models(new, wanted, "new clients")


test_reference, test_contract = comparison(
    "fedlc",
    fedlc.run,
    variants={"all": {"tau": 0.5}, "others": {"tau": 0.02, "denominator": "others"}},
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    finish=check_new_clients,
)


def test_tau_of_zero_without_the_true_class_is_no_fedavg():
    ours = pfl.make_algorithm("fedlc", {"tau": 0, "denominator": "others"})
    assert ours.remarks(toy_federation()) == []
