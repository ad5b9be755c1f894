"""FedBABU against its reference, its frozen head, and its fine-tuning."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_steps, over, stack
from tests.algorithms.norms import ConvNorm, assert_everyones
from tests.engine.finals import final_in
from tests.references import fedbabu

TUNED = {"fine_tune_epochs": 2, "fine_tune_rate": 0.2, "fine_tune_momentum": 0.5}
VARIANTS = {"uniform": TUNED, "size": {"weighting": "size"}}
SGD = {"momentum": 0.5, "weight_decay": 0.1}


def algorithm(**settings):
    return pfl.make_algorithm("fedbabu", settings)


@cache
def rounds_of(pattern, variant):
    case = Case(**PATTERNS[pattern], **SGD)
    return case, *case.run_rounds(algorithm(**VARIANTS[variant]))


def reference(case, weighting="uniform", **tuning):
    """Its rounds, and the fine-tuning that a run's hyperparameters say."""
    schedule = replace(case.federation.schedule, epochs=tuning.get("fine_tune_epochs", 5))
    names = {"fine_tune_rate": "tuning_rate", "fine_tune_momentum": "tuning_momentum"}
    return fedbabu.run(
        case.initial(),
        case.clients(),
        3,
        **case.common(),
        **SGD,
        weighting=weighting,
        tuning_batches=case.batches("adapt", schedule)[-1],
        part=tuning.get("part", "full"),
        **{theirs: tuning[ours] for ours, theirs in names.items() if ours in tuning},
    )


@over(PATTERNS, [("partial-map", "uniform"), ("full-vmap", "size")], VARIANTS)
def test_reference(pattern, variant):
    case, states, records = rounds_of(pattern, variant)
    wanted, batches = reference(case, **VARIANTS[variant]), case.batches()
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_everyones(state, models["personalized"], f"round {t}")
        assert_losses(record, case, "global", models["personalized"])
        assert_steps(record, case.cohorts[t], batches[t])
        case.assert_whole_models(record, t)
        case.assert_mean(record, t, None if variant == "size" else 1)
    assert_losses(records[-1], case, "personalized", wanted[-1]["tuned"])
    if case.scored:
        assert np.isnan(records[0]["scores"]["personalized/test/loss"]).all()


@pytest.mark.parametrize("part", ["full", "head", pytest.param("body", marks=pytest.mark.slow)])
def test_fine_tuning(part):
    """By default with the authors' rate and momentum, for five epochs."""
    case, states, _ = rounds_of("partial-map", "uniform")
    settings = {} if part == "full" else {**TUNED, "part": part}
    final = final_in(states[-1], algorithm(**settings), case.federation, case.rounds)
    models = jax.tree.map(lambda leaf: leaf[0], final.models())
    tuned = reference(case, **settings)[-1]["tuned"]
    assert_close(models["personalized"], stack(tuned), part)


def test_neither_momentum_nor_decay_moves_the_head():
    """A published form sets the head's gradient to 0; weight decay still moves it."""
    case, states, _ = rounds_of("partial-map", "uniform")
    for state in states:
        assert_close(state.private, states[0].private, "heads", 0)
        assert state.server["params"]["head"]["kernel"] is None
    plan = algorithm().prepare(case.federation).plan
    assert plan.shared_block_sizes().tolist() == [25, 0]


@pytest.mark.thorough
def test_new_clients_fine_tune_as_old_ones_do():
    case, states, _ = rounds_of("partial-map", "uniform")
    final = final_in(states[-1], algorithm(**TUNED), case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    wanted = reference(case, **TUNED)[-1]
    assert_close(made, stack(wanted["tuned"]), "new clients")
    counted = case.federation.with_training(local_steps=1)
    steps = jax.tree.map(lambda leaf: leaf[0], final.personalize(counted))
    batches = case.batches("adapt", replace(counted.schedule, shuffle=True))[-1]
    everything = list(wanted["global"])
    one = [fedbabu.descend(wanted["global"], everything, own, case.x, case.y, 0.2)
           for own in batches]  # fmt: skip
    assert_close(steps, stack(one), "one step")


@pytest.mark.slow
def test_rates_of_fine_tuning_are_swept_in_one_program():
    case, _, records = rounds_of("partial-map", "uniform")
    rates = {"fine_tune_rate": (1e-3, TUNED["fine_tune_rate"])}
    swept = pfl.simulate(algorithm(**TUNED), case.federation, 3, settings=rates, seeds=(0,))
    scores = swept.scores["personalized/test/loss"][0, :, -1]
    assert_close(scores[1], records[-1]["scores"]["personalized/test/loss"], "one run")
    assert (abs(scores[0] - scores[1])[:4] > 1e-3).all()


@pytest.mark.thorough
def test_running_statistics_are_averaged_and_the_users_say_keeps_them_apart():
    for policy, affine in ((None, 8), ("local", 0)):
        federation = toy_federation(model=ConvNorm(), batch_norm=policy)
        plan = algorithm().prepare(federation).plan
        assert plan.shared_block_sizes().tolist() == [20, affine, 0]
    ours = algorithm()
    state = states_of(ours, federation, 1)[-1]
    final = final_in(state, ours, federation, 1)
    assert "global" not in jax.eval_shape(final.models)


def test_a_table_says_how_models_were_fine_tuned():
    ours = algorithm(part="head")
    assert ours.remarks(ours.prepare(toy_federation())) == [
        "scored after 5 local epochs of the head, learning rate 0.001, optimizer SGD (momentum "
        "0.9) on a copy, after the last round only"
    ]
