"""FedPAC against its reference: statistics, combination weights, prototypes."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import Case, sampled_federation, stack
from tests.engine.finals import final_in
from tests.references import fedpac
from tests.references.local_sgd import sgd
from tests.references.network import loss_and_gradient


def algorithm(**settings):
    return pfl.make_algorithm("fedpac", settings)


def head_batches(one):
    count = one.settings.get("head_epochs", 1)
    schedule = replace(one.case.federation.schedule, epochs=count)
    return {"head_batches": one.case.batches("head", schedule)}


def compare_round(now):
    case, state, members = now.case, now.state, now.cohort
    own = jax.tree.map(lambda leaf: np.stack([leaf] * case.num_clients), state.body["params"])
    own = {**own, "head": state.heads["params"]["head"]}
    assert_close({"params": own}, stack(now.wanted["personalized"]), f"round {now.t}")
    found = state.means[now.wanted["exists"]]
    np.testing.assert_allclose(found, now.wanted["prototypes"][now.wanted["exists"]], 1e-9)
    mixing = now.record["matrices"]["mixing"][np.ix_(members, members)]
    np.testing.assert_allclose(mixing, now.wanted["weights"], 1e-8, 1e-9)
    before = now.compared.wanted[now.t - 1]["exists"] if now.t else 0
    assert_traffic(now.record, case, members, before)
    if now.t == 0:
        bodies = now.batches()
        assert_training_loss(case, now.record, now.batches("head_batches"), bodies, now.settings)


def assert_prototypes_come_and_go(one):
    """Classes that the last members lacked have no prototype."""
    if one.variant == "single members":
        assert [sum(models["exists"]) for models in one.wanted] == [2, 3, 2]


test_reference, test_contract = comparison(
    "fedpac",
    fedpac.run,
    variants={
        "authors": {},
        "other settings": {"weight": 3.0, "head_epochs": 2, "head_rate": 0.3, "cutoff": 0.25},
        "no head epochs": {"head_epochs": 0},
        "single members": Variant(options={"participation": 0.2}),
    },
    ours=("head_epochs",),
    given=head_batches,
    states={"exist": "exists"},
    scores={"personalized": "personalized"},
    steps=("batches", "head_batches"),
    copies=False,
    check=compare_round,
    finish=assert_prototypes_come_and_go,
)


@pytest.mark.costly
def test_prototypes_stay_in_rounds_without_arrivals():
    late = dict.fromkeys(range(5), 1)  # on time in every third round
    states = states_of(algorithm(), toy_federation(stragglers=late, model=TanhNetwork()), 5)
    assert states[3].exist.any()
    np.testing.assert_array_equal(states[5].exist, states[3].exist)
    np.testing.assert_array_equal(states[5].means, states[3].means)


def assert_training_loss(case, record, heads, bodies, settings):
    """It is the mean over the steps of both phases, without the alignment."""
    i, losses = case.cohorts[0][0], []
    model, rates = case.initial(), (settings.get("head_rate", 0.1), case.rates[0])
    for walk, rate, layer in zip((heads[i], bodies[i]), rates, ("head", "hidden"), strict=True):
        for at in walk:
            losses.append(loss_and_gradient(model, case.x[at], case.y[at])[0])
            model = sgd(model, [at], case.x, case.y, rate, layers=[layer])
    found = record["clients"]["train_loss"][i]
    np.testing.assert_allclose(found, np.mean(losses), 1e-9)


def assert_traffic(record, case, members, exists):
    classes = np.array([len(np.unique(case.y[case.samples(i)])) for i in members])
    np.testing.assert_array_equal(record["clients"]["numbers_up"][members], 2 * 5 * classes + 1)
    np.testing.assert_array_equal(record["clients"]["numbers_down"][members], 5 * np.sum(exists))
    passes = record["clients"]["forward_samples"]
    np.testing.assert_array_equal(passes[members], 2 * case.sizes[members])
    absent = np.setdiff1d(np.arange(case.num_clients), members)
    for name in ("numbers_up", "numbers_down", "forward_samples"):
        assert not record["clients"][name][absent].any()


@pytest.mark.costly
def test_cutoff_above_all_weights_keeps_the_trained_head():
    federation = sampled_federation()
    rate = float(np.asarray(federation.training.learning_rate))
    ours = states_of(algorithm(head_rate=rate, cutoff=0.999), federation, 1)[-1]
    fedrep = pfl.make_algorithm("fedrep", {"head_epochs": 1, "weighting": "size"})
    heads = states_of(fedrep, federation, 1)[-1].private["params"]["head"]
    assert_close(ours.heads["params"]["head"], heads, "heads")


@pytest.mark.costly
@pytest.mark.parametrize(("tau", "count"), [(2, 2), (0, 1)])
def test_personalize_trains_a_head_on_the_servers_body(tau, count):
    case, ours = Case(), algorithm(head_epochs=tau, head_rate=0.2)
    states = states_of(algorithm(), case.federation, 1)
    made = final_in(states[-1], ours, case.federation, 3).personalize(case.federation)
    batches = case.batches("personalize", replace(case.federation.schedule, epochs=count))[-1]
    body = jax.tree.map(np.asarray, states[-1].body["params"]["hidden"])
    head = jax.tree.map(lambda leaf: np.mean(leaf, axis=0), states[-1].heads["params"]["head"])
    start = {"hidden": body, "head": head}
    wanted = [sgd(start, own, case.x, case.y, 0.2, layers=["head"]) for own in batches]
    assert_close(jax.tree.map(lambda leaf: leaf[0], made), stack(wanted), "new clients")
