"""Federated distillation against its reference, and its limits."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.feddistill import Predictions, mean_of
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
    sampled_federation,
)
from tests.engine.finals import final_in
from tests.references import feddistill

VARIANTS = {"default": {}, "strong": {"weight": 3.0}}


def algorithm(**settings):
    return pfl.make_algorithm("feddistill", settings)


@over(PATTERNS, [("partial-map", "strong"), ("full-vmap", "default")], VARIANTS)
def test_reference(pattern, variant):
    settings, case = VARIANTS[variant], Case(**PATTERNS[pattern])
    common = case.common()
    wanted = feddistill.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_models(state.models, models["personalized"], "personalized")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        total, holders = np.zeros((3, 3)), np.zeros(3)
        up, down = np.zeros((2, case.num_clients), int)
        for i, means in models["sent"].items():
            up[i], down[i] = 3 * len(means), 3 * models["taught"][i]
            for c, mean in means.items():
                total[c] += mean
                holders[c] += 1
        np.testing.assert_allclose(state.total.means, total, 1e-9, atol=1e-12)
        np.testing.assert_array_equal(state.total.holders, holders)
        np.testing.assert_array_equal(record["clients"]["numbers_up"], up)
        np.testing.assert_array_equal(record["clients"]["numbers_down"], down)
        assert not record["up"].any() and not record["down"].any()


@pytest.mark.thorough
def test_without_the_term_it_is_local_training():
    federation = sampled_federation()
    states, ours = run_rounds(algorithm(weight=0), federation)
    local, theirs = run_rounds(pfl.make_algorithm("local", {"participants": "sampled"}), federation)
    assert_close(states[-1].models, local[-1].models, "models")
    mine, plain = (records[-1]["clients"]["train_loss"] for records in (ours, theirs))
    np.testing.assert_allclose(mine, plain, 1e-9)
    assert algorithm(weight=0).remarks(federation)[-1] == "weight is 0: trained locally"
    assert len(algorithm().remarks(federation)) == 1


@pytest.mark.thorough
def test_clients_that_diverge_or_are_late_teach_nobody():
    options = {"validation_size": 0, "diverging": 3, "stragglers": {1: 1}}
    federation = toy_federation(dtype="float32", **options)
    (before, after, _), (record, second) = run_rounds(algorithm(), federation, 2)
    leaves = (state.models["params"]["head"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*leaves).any(axis=1), [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(after.last_round, [0, -1, 0, -1, 0])
    np.testing.assert_array_equal(record["clients"]["numbers_up"] > 0, [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(after.total.holders, after.sent.holders.sum(axis=0))
    np.testing.assert_allclose(after.total.means.sum(axis=1), after.total.holders, 1e-6)
    # The late client is not asked in the second round; the one that diverges received teachers.
    np.testing.assert_array_equal(second["clients"]["numbers_down"] > 0, [1, 0, 1, 1, 1])


@pytest.mark.thorough
def test_rounds_in_which_nobody_arrives_leave_the_teachers():
    late = dict.fromkeys(range(5), 1)  # on time in every third round alone
    states = states_of(algorithm(), toy_federation(stragglers=late, validation_size=0), 5)
    assert states[3].total.holders.any() and states[3].total_round == 2
    assert_close(states[5], states[3], "state", 0)


def test_a_class_has_a_teacher_from_half_a_client_on():
    found = mean_of(Predictions(np.full((3, 2), 0.9), np.array([0.4, 0.6, 1.8])))
    np.testing.assert_array_equal(found.holders, [False, True, True])
    np.testing.assert_allclose(found.means[1:], [[1.5, 1.5], [0.5, 0.5]], 1e-6)


@pytest.mark.thorough
def test_new_clients_learn_from_everybody():
    case = Case(1, scored=False)
    states, _ = case.run_rounds(algorithm())
    made = final_in(states[-1], algorithm(), case.federation, 1).personalize(case.federation)
    (sent,) = feddistill.run(case.initial(), case.clients(), 1, **case.common())
    teacher = feddistill.teachers(sent["sent"])
    (batches,) = case.batches("personalize", starts=case.everyone)
    wanted = [
        feddistill.train(case.initial(), own, case.x, case.y, teacher, case.rates[0], 1.0)[0]
        for own in (batches[i] for i in range(case.num_clients))
    ]
    assert_models(jax.tree.map(lambda leaf: leaf[0], made), wanted, "new clients")
