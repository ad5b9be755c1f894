"""FML against its reference, and its limits."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_models,
    assert_steps,
    over,
    sampled_federation,
)
from tests.algorithms.newcomers import personalized
from tests.references import fml

VARIANTS = {
    "defaults": {},
    "unequal": {"alpha": 0.7, "beta": 0.2, "weighting": "uniform"},
}


def algorithm(**settings):
    return pfl.make_algorithm("fml", settings)


@over(PATTERNS, [("partial-map", "unequal"), ("full-vmap", "defaults")], VARIANTS)
def test_reference(pattern, variant):
    settings, case = VARIANTS[variant], Case(**PATTERNS[pattern])
    common = case.common()
    wanted = fml.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_models(state.own, models["personalized"], "personalized")
        case.assert_two_models(record, models)
        assert_steps(record, case.cohorts[t], *[common["batches"][t]] * 2)
        case.assert_whole_models(record, t)


@pytest.mark.thorough
def test_without_teaching_it_is_fedavg_and_local_training():
    federation = sampled_federation()
    states, records = run_rounds(algorithm(alpha=1, beta=1), federation)
    averaged, plain = run_rounds(pfl.make_algorithm("fedavg"), federation)
    local, _ = run_rounds(pfl.make_algorithm("local", {"participants": "sampled"}), federation)
    assert_close(states[-1].server, averaged[-1].server, "server")
    assert_close(states[-1].own, local[-1].models, "own")
    for record, other in zip(records, plain, strict=True):  # losses of meme models
        losses = (one["clients"]["train_loss"] for one in (record, other))
        np.testing.assert_allclose(*losses, 1e-9)


def test_a_table_says_that_own_models_learn_nothing_from_others():
    federation = toy_federation()
    assert algorithm().remarks(federation) == []
    (said,) = algorithm(alpha=1).remarks(federation)
    assert said == "alpha is 1: what is scored was trained locally"


@pytest.mark.thorough
def test_a_client_without_cross_entropy_still_learns_from_its_meme_model():
    """With alpha 0 own models follow the meme models, which differ after the first step."""
    (start, end) = states_of(algorithm(alpha=0), toy_federation(validation_size=0), 1)
    moved = np.not_equal(start.own["params"]["head"]["bias"], end.own["params"]["head"]["bias"])
    assert moved.any(axis=1).all()


class TrainedOnly(TanhNetwork):
    """A network that predicts nothing in evaluation mode."""

    def __call__(self, x, train: bool = False):
        return super().__call__(x) * (1.0 if train else 0.0)


@pytest.mark.thorough
def test_teachers_are_in_training_mode():
    """Equal models have nothing to teach each other."""
    federation = toy_federation(model=TrainedOnly(), validation_size=0)
    start, end = states_of(algorithm(alpha=0, beta=0), federation, 1)
    assert_close(end.own, start.own, "own", 1e-12)
    assert_close(end.server, start.server, "server", 1e-12)


@pytest.mark.thorough
def test_who_diverges_keeps_its_own_model():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=3)
    before, after = states_of(algorithm(), federation, 1)
    leaves = (state.own["params"]["head"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*leaves).any(axis=1), [1, 1, 1, 0, 1])


@pytest.mark.thorough
def test_new_clients_train_both_from_the_servers_model():
    case = Case(1, scored=False)
    start = case.initial("server")
    (batches,) = case.batches("personalize")
    wanted = [
        fml.train(start, start, batches[i], case.x, case.y, case.rates[0], 0.7, 0.5)[0]
        for i in range(case.num_clients)
    ]
    assert_models(personalized(algorithm(alpha=0.7), case), wanted, "new clients")
