"""FedPAC against its reference: statistics, combination weights, prototypes, limits."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_steps,
    over,
    sampled_federation,
    stack,
)
from tests.engine.finals import final_in
from tests.references import fedpac
from tests.references.local_sgd import sgd
from tests.references.network import loss_and_gradient

VARIANTS = {
    "authors": {},
    "other-settings": {"weight": 3.0, "head_epochs": 2, "head_rate": 0.3, "cutoff": 0.25},
    "no-head-epochs": {"head_epochs": 0},
}
QUICK = [("partial-map", "authors"), ("full-vmap", "other-settings")]


def algorithm(**settings):
    return pfl.make_algorithm("fedpac", settings)


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    compare(Case(**PATTERNS[pattern]), **VARIANTS[variant])


@pytest.mark.thorough
def test_classes_that_the_last_members_lacked_have_no_prototype():
    case = Case(participation=0.2, client_execution="vmap", scored=False)
    exist = compare(case)
    assert [sum(known) for known in exist] == [2, 3, 2]


@pytest.mark.thorough
def test_rounds_in_which_nobody_arrives_leave_the_prototypes():
    late = dict.fromkeys(range(5), 1)  # on time in every third round
    states = states_of(algorithm(), toy_federation(stragglers=late, model=TanhNetwork()), 5)
    assert states[3].exist.any()
    np.testing.assert_array_equal(states[5].exist, states[3].exist)
    np.testing.assert_array_equal(states[5].means, states[3].means)


def compare(case, **settings):
    """Runs FedPAC and its reference; returns which classes had prototypes after each round."""
    ours = algorithm(**settings)
    common, count = case.common(), settings.pop("head_epochs", 1)
    schedule = replace(case.federation.schedule, epochs=count)
    heads = case.batches("head", schedule)
    wanted = fedpac.run(case.initial(), case.clients(), 3, **common, head_batches=heads, **settings)
    states, records = case.run_rounds(ours)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        own = jax.tree.map(lambda leaf: np.stack([leaf] * case.num_clients), state.body["params"])
        own = {**own, "head": state.heads["params"]["head"]}
        assert_close({"params": own}, stack(models["personalized"]), f"round {t}")
        np.testing.assert_array_equal(state.exist, models["exists"])
        found = state.means[models["exists"]]
        np.testing.assert_allclose(found, models["prototypes"][models["exists"]], 1e-9)
        members = case.cohorts[t]
        mixing = record["matrices"]["mixing"][np.ix_(members, members)]
        np.testing.assert_allclose(mixing, models["weights"], 1e-8, 1e-9)
        if case.scored:
            assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, members, common["batches"][t], heads[t])
        assert_traffic(record, case, members, wanted[t - 1]["exists"] if t else 0)
    assert_training_loss(case, records[0], heads[0], common["batches"][0], settings)
    return [models["exists"] for models in wanted]


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


@pytest.mark.thorough
def test_without_alignment_bodies_are_those_of_fedrep():
    """While heads have not been combined: in the first round."""
    federation = sampled_federation()
    rate = np.asarray(federation.training.learning_rate)
    ours = states_of(algorithm(head_rate=float(rate)), federation, 1)[-1]
    fedrep = pfl.make_algorithm("fedrep", {"head_epochs": 1, "weighting": "size"})
    assert_close(ours.body, states_of(fedrep, federation, 1)[-1].server, "bodies")


def test_a_cutoff_that_leaves_only_the_largest_weight():
    """A single client combines only its own head."""
    federation = sampled_federation(participation=0.2)
    _, (record, *_) = run_rounds(algorithm(), federation, 1, scored=())
    np.testing.assert_array_equal(record["matrices"]["mixing"], np.eye(5))


def test_a_head_without_weights_stays_as_trained():
    federation = sampled_federation()
    rate = float(np.asarray(federation.training.learning_rate))
    ours = states_of(algorithm(head_rate=rate, cutoff=0.999), federation, 1)[-1]
    fedrep = pfl.make_algorithm("fedrep", {"head_epochs": 1, "weighting": "size"})
    heads = states_of(fedrep, federation, 1)[-1].private["params"]["head"]
    assert_close(ours.heads["params"]["head"], heads, "heads")


@pytest.mark.thorough
def test_prototypes_stay_in_a_round_without_members():
    federation = toy_federation(validation_size=0, stragglers=dict.fromkeys(range(5), 1))
    *_, before, after = states_of(algorithm(), federation, 4)
    assert np.any(before.means)
    np.testing.assert_array_equal(before.means, after.means)


@pytest.mark.thorough
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
