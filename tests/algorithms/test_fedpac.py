"""FedPAC against its reference: statistics, combination weights, prototypes."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import Case, maker, mean_loss, sampled_federation, stack
from tests.engine.finals import final_in
from tests.references import fedpac
from tests.references.local_sgd import sgd

algorithm = maker("fedpac")


def run(s, **options):
    """The reference, with the body that all clients share."""
    history = fedpac.run(s, **options)
    return [{**models, "body": models["personalized"][0]["hidden"]} for models in history]


def head_batches(one):
    schedule = replace(one.case.federation.schedule, epochs=one.algorithm.head_epochs)
    return {"head_batches": one.case.batches("head", schedule)}


def check_collaboration_and_costs(now):
    known, members, clients = now.wanted["exists"], now.cohort, now.clients
    np.testing.assert_array_equal(now.state.exist, known)
    prototypes = now.wanted["prototypes"][known]
    np.testing.assert_allclose(now.state.means[known], prototypes, 1e-9)
    mixing = now.record["matrices"]["mixing"][np.ix_(members, members)]
    np.testing.assert_allclose(mixing, now.wanted["weights"], 1e-8, 1e-9)
    classes = np.array([len(np.unique(now.case.y[c["samples"]])) for c in now.case.clients()])
    before = now.compared.wanted[now.t - 1]["exists"].sum() if now.t else 0
    numbers = {
        "numbers_up": 2 * 5 * classes + 1,
        "numbers_down": 5 * before,
        "forward_samples": 2 * now.case.sizes,
    }
    for name, wanted in numbers.items():
        np.testing.assert_array_equal(clients[name], wanted * now.present, err_msg=name)


def check_training_loss(one):
    """It is the mean over the steps of both phases, without the alignment."""
    case, i = one.case, one.case.cohorts[0][0]
    of_head = one.options["head_batches"][0][i], one.settings["head_rate"], ["head"]
    of_body = one.setting.batches[0][i], case.rates[0], ["hidden"]
    found = one.records[0]["clients"]["train_loss"][i]
    np.testing.assert_allclose(found, mean_loss(case, case.initial(), of_head, of_body), 1e-9)
    if one.variant == "alone":  # of one member's, with its classes
        assert [models["exists"].sum() for models in one.wanted] == [2, 3, 2]


test_reference, test_contract = comparison(
    "fedpac",
    run,
    settings={"weight": 3.0, "head_rate": 0.3, "cutoff": 0.25},
    variants={
        "one head epoch": {},
        "two head epochs": {"head_epochs": 2},
        "no head epochs": {"head_epochs": 0},
        "alone": Variant(options={"participation": 0.2, "scored": False}),
    },
    ours=("head_epochs",),
    given=head_batches,
    states={"body.params.hidden": "body", "heads.params.head": "personalized.head"},
    scores={"personalized": "personalized"},
    steps=("batches", "head_batches"),
    check=check_collaboration_and_costs,
    finish=check_training_loss,
)


@pytest.mark.costly
def test_a_head_without_weights_stays_as_trained():
    federation = sampled_federation()
    rate = float(np.asarray(federation.training.learning_rate))
    ours = states_of(algorithm(head_rate=rate, cutoff=0.999), federation, 1)[-1]
    fedrep = pfl.make_algorithm("fedrep", {"head_epochs": 1, "weighting": "size"})
    heads = states_of(fedrep, federation, 1)[-1].private["params"]["head"]
    assert_close(ours.heads["params"]["head"], heads, "heads")


@pytest.mark.costly
@pytest.mark.parametrize(("tau", "count"), [(2, 2), (0, 1)])
def test_new_clients_learn_a_head_on_the_servers_body(tau, count):
    case, ours = Case(), algorithm(head_epochs=tau, head_rate=0.2)
    states = states_of(algorithm(), case.federation, 1)
    made = final_in(states[-1], ours, case.federation, 3).personalize(case.federation)
    batches = case.batches("personalize", replace(case.federation.schedule, epochs=count))[-1]
    body = jax.tree.map(np.asarray, states[-1].body["params"]["hidden"])
    head = jax.tree.map(lambda leaf: np.mean(leaf, axis=0), states[-1].heads["params"]["head"])
    start = {"hidden": body, "head": head}
    wanted = [sgd(start, own, case.x, case.y, 0.2, layers=["head"]) for own in batches]
    assert_close(jax.tree.map(lambda leaf: leaf[0], made), stack(wanted), "new clients")
