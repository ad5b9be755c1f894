"""FedNova against its reference, its effective steps, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_steps, over
from tests.models.test_normalization import NormNet
from tests.references import fednova

VARIANTS = {
    "plain": ({}, {}),
    "momentum": ({"proximal_weight": 0.7}, {"momentum": 0.5}),
    "proximal": ({"proximal_weight": 0.7}, {}),
    "nesterov": ({}, {"optimizer_options": {"momentum": 0.6, "nesterov": True}}),
}
QUICK = [("partial-map", "plain"), ("full-vmap", "momentum")]


def algorithm(**settings):
    return pfl.make_algorithm("fednova", settings)


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    settings, local = VARIANTS[variant]
    case = Case(**PATTERNS[pattern], **local)
    common, local = case.common(), local.get("optimizer_options", local)
    wanted = fednova.run(case.initial(), case.clients(), 3, **common, **settings, **local)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        case.assert_one_model(record, models["global"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        np.testing.assert_allclose(record["matrices"]["mixing"], models["weights"][None], 1e-9)
        case.assert_whole_models(record, t)


@pytest.mark.parametrize(("mu", "momentum"), [(0.0, 0.9), (0.5, 0.0)])
def test_effective_steps_are_those_of_the_papers_formulas(mu, momentum):
    federation = toy_federation(local_epochs=3, momentum=momentum)
    ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(3), None)
    taken, rate = np.array([0, 1, 2, 6]), 0.3
    found, without = algorithm(proximal_weight=mu).effective_steps(ctx, jnp.asarray(taken))
    plain = [fednova.length_with_momentum(steps, momentum) for steps in taken]
    np.testing.assert_allclose(without, plain, 1e-12)
    wanted = plain if not mu else [fednova.proximal_length(steps, rate * mu) for steps in taken]
    np.testing.assert_allclose(found, wanted, 1e-12)


@pytest.mark.thorough
def test_clients_that_train_as_many_steps_are_averaged_as_in_fedavg():
    federation = toy_federation(local_steps=3, validation_size=0)
    ours = states_of(algorithm(), federation, 2)[-1]
    assert_close(ours.server, states_of(pfl.make_algorithm("fedavg"), federation, 2)[-1].server, "")


@pytest.mark.thorough
def test_slow_clients_count_as_the_others():
    case = Case(participation=0.8, local_epochs=3)
    states, records = case.run_rounds(algorithm(slow_fraction=0.5))
    common = case.common()
    work = [record["clients"]["local_steps"].astype(int) for record in records]
    assert len({tuple(steps) for steps in work}) > 1
    cut = [
        [own[:count] for own, count in zip(*both, strict=True)]
        for both in zip(common.pop("batches"), work, strict=True)
    ]
    wanted = fednova.run(case.initial(), case.clients(), 3, **common, batches=cut)
    for state, models in zip(states[1:], wanted, strict=True):
        assert_close(state.server["params"], models["global"], "global")


@pytest.mark.thorough
def test_running_statistics_stay_within_the_clients():
    """They are averaged: the longer step of parameters could make a variance negative."""
    federation = toy_federation(model=NormNet(), batch_norm="shared", validation_size=0)
    states, (record,) = run_rounds(algorithm(), federation, 1, scored=())
    weights = record["matrices"]["mixing"][0]
    assert weights.sum() == pytest.approx(1) and len(set(weights.round(6))) > 2
    assert (states[-1].server["batch_stats"]["bn"]["var"] > 0).all()


def test_momentum_that_is_kept_is_refused():
    """Effective steps are counted from a momentum of 0."""
    kept = {"keep_optimizer_state": True}
    algorithm().check(toy_federation(**kept))
    with pytest.raises(pfl.InputError, match="leave keep_optimizer_state out"):
        algorithm().check(toy_federation(momentum=0.9, **kept))


def test_what_a_table_says():
    assert algorithm().remarks(toy_federation()) == []
