"""The contract holds four kinds of algorithms without a change of the engine."""

import jax
import numpy as np
import pytest

from fedjax_pfl.testing import toys
from fedjax_pfl.testing.suite import CHECKS
from fedjax_pfl.testing.toys import run_rounds, states_of, toy_federation
from tests.algorithms.field import FIELD, Predicted, TwoModels, ValidationLosses
from tests.algorithms.harness import Case, stack
from tests.references.local_sgd import sgd
from tests.references.network import add, combine, dot, loss_and_gradient, scale, subtract

QUICK = ("partial_participation", "permutation")  # of those that differ most in what they keep
KINDS = (TwoModels, Predicted)


def case(name, check):
    quick = check in QUICK and FIELD[name] in KINDS
    slow = () if quick else (pytest.mark.slow,)
    return pytest.param(name, check, marks=slow)


@pytest.mark.parametrize(("name", "check"), [case(n, c) for n in FIELD for c in CHECKS])
def test_suite(name, check, monkeypatch):
    def toy_for(*args, **options):
        return toys.toy_for(*args, **options, validation_size=2 * (name == "ValidationLosses"))

    monkeypatch.setattr("fedjax_pfl.testing.suite.toy_for", toy_for)
    CHECKS[check](FIELD[name]())


def close(actual, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-9, 1e-9), actual, wanted)


def test_two_models_against_plain_loops():
    case = Case(participation=0.6)
    states = case.states_of(TwoModels())
    server, rates = case.initial(), case.rates
    own, alpha, batches = [server] * 5, [0.5] * 5, case.batches()
    for t, cohort in enumerate(case.cohorts):
        uploads = []
        for i in cohort:
            w = server
            for b in batches[t][i]:
                v, a = own[i], alpha[i]
                g = loss_and_gradient(add(scale(a, v), scale(1 - a, w)), case.x[b], case.y[b])[1]
                inner = dot(subtract(v, w), g)
                w = sgd(w, [b], case.x, case.y, rates[t])
                own[i] = subtract(v, scale(rates[t] * a, g))
                alpha[i] = min(max(a - rates[t] * inner, 0), 1)
            uploads.append(w)
        shares = case.sizes[cohort] / case.sizes[cohort].sum()
        server = combine(shares, uploads)
        close(states[t + 1].server, {"params": server})
        close(states[t + 1].alpha, np.array(alpha))
        close(states[t + 1].own, stack(own))


def test_validation_losses_are_each_clients_own():
    case = Case(validation_size=2)
    states = case.states_of(ValidationLosses())
    models = [jax.tree.map(lambda x, i=i: x[i], states[1].models["params"]) for i in range(5)]
    losses = np.array(
        [[loss_and_gradient(m, case.x[at], case.y[at])[0] for m in models]
         for at in (case.samples(i, "validation") for i in range(5))]
    )  # fmt: skip
    gain = np.maximum(np.diagonal(losses)[:, None] - losses, 0)
    raised = states[2].affinity > states[1].affinity
    np.testing.assert_array_equal(raised, gain > 0)
    assert raised.any()


def test_a_late_upload_arrives_when_its_delay_is_over():
    late = {1: 2}
    federation = toy_federation(stragglers=late)
    states, records = run_rounds(Predicted(), federation, rounds=6, scored=())
    # Phases of client 1: starts (0), idle (1), its upload arrives (2), in step (3), starts (0), ...
    np.testing.assert_array_equal([r["down"][1, 0] for r in records], [1, 0, 0, 1, 1, 0])
    np.testing.assert_array_equal([r["up"][1, 0] for r in records], [0, 0, 1, 1, 0, 0])
    kept = [jax.tree.map(lambda x: x[1], s.trained) for s in states]
    close(kept[2], kept[1])
    close(kept[3], kept[1])
    punctual = states_of(Predicted(), toy_federation(), rounds=6)
    assert not np.allclose(
        jax.tree.leaves(punctual[-1].server)[0], jax.tree.leaves(states[-1].server)[0]
    )
