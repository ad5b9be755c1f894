"""FedRep against its reference, its phases, and its limits."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    FourLayers,
    assert_losses,
    assert_steps,
    over,
    stack,
)
from tests.algorithms.norms import ConvNorm, assert_everyones
from tests.engine.finals import final_in
from tests.references import fedrep, network
from tests.references.local_sgd import sgd

VARIANTS = {
    "authors": {},
    "size-and-final-epochs": {"head_epochs": 3, "weighting": "size", "final_head_epochs": 2},
    "no-head-epochs": {"head_epochs": 0},
}
FINAL = "size-and-final-epochs"
QUICK = [("partial-map", FINAL), ("full-vmap", "authors")]


def algorithm(**settings):
    return pfl.make_algorithm("fedrep", settings)


@cache
def rounds_of(pattern, variant):
    case = Case(**PATTERNS[pattern])
    return case, *case.run_rounds(algorithm(**VARIANTS[variant]))


def epochs(case, count):
    return replace(case.federation.schedule, epochs=count)


@over(PATTERNS, QUICK, VARIANTS, elsewhere=("no-head-epochs",))
def test_reference(pattern, variant):
    case, states, records = rounds_of(pattern, variant)
    settings = VARIANTS[variant]
    common, last = case.common(), None
    heads = case.batches("head", epochs(case, settings.get("head_epochs", 10)))
    if "final_head_epochs" in settings:
        last = case.batches("adapt", epochs(case, settings["final_head_epochs"]))[-1]
    wanted = fedrep.run(
        case.initial(),
        case.clients(),
        3,
        **common,
        head_batches=heads,
        weighting=settings.get("weighting", "uniform"),
        final_head_batches=last,
    )
    every_round = "personalized" if last is None else "before"
    before = [case.initial()] * case.num_clients
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_everyones(state, models["personalized"], f"round {t}")
        assert_losses(record, case, every_round, models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t], heads[t])
        assert_recorded_losses(record, case, t, heads[t], common["batches"][t], before)
        before = models["personalized"]
        case.assert_whole_models(record, t)
        case.assert_mean(record, t, None if settings.get("weighting") == "size" else 1)
    if last is not None and case.scored:
        assert_losses(records[-1], case, "personalized", wanted[-1]["tuned"])
        assert np.isnan(records[0]["scores"]["personalized/test/loss"]).all()


def assert_recorded_losses(record, case, t, heads, bodies, before):
    """Means over the steps of both phases, of the members' models `before` the round."""
    wanted = np.full(case.num_clients, np.nan)
    for i in case.cohorts[t]:
        model, losses = before[i], []
        for layers, walk in ((["head"], heads[i]), (fedrep.body_of(model), bodies[i])):
            for at in walk:
                losses.append(network.loss_and_gradient(model, case.x[at], case.y[at])[0])
                model = sgd(model, [at], case.x, case.y, case.rates[t], layers=layers)
        wanted[i] = sum(losses) / max(len(losses), 1)
    found = record["clients"]["train_loss"]
    np.testing.assert_allclose(found[case.cohorts[t]], wanted[case.cohorts[t]], 1e-9)


def test_heads_are_neither_sent_nor_averaged():
    """A published form averages and sends them, and overwrites them later."""
    case, states, _ = rounds_of("partial-map", FINAL)
    plan = algorithm().prepare(case.federation).plan
    sizes = dict(zip(plan.blocks, plan.shared_block_sizes().tolist(), strict=True))
    assert sizes == {"hidden": 25, "head": 0}
    assert states[-1].server["params"]["head"]["kernel"] is None
    for before, after, cohort in zip(states, states[1:], case.cohorts, strict=False):
        old, new = (s.private["params"]["head"]["kernel"] for s in (before, after))
        moved = [(a != b).any() for a, b in zip(old, new, strict=True)]
        assert np.flatnonzero(moved).tolist() == sorted(cohort)


@pytest.mark.thorough
@pytest.mark.parametrize(("tau", "count"), [(2, 2), (0, 1)])
def test_new_clients_learn_a_head_on_the_servers_body(tau, count):
    case, states, _ = rounds_of("partial-map", FINAL)
    final = final_in(states[-1], algorithm(head_epochs=tau), case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    batches = case.batches("personalize", epochs(case, count))[-1]
    body = jax.tree.map(np.asarray, states[-1].server["params"]["hidden"])
    start = {"hidden": body, "head": case.initial()["head"]}
    wanted = [sgd(start, own, case.x, case.y, case.rates[-1], layers=["head"]) for own in batches]
    assert_close(made, stack(wanted), "new clients")


@pytest.mark.thorough
def test_new_clients_take_as_many_steps_as_are_asked_for():
    case, states, _ = rounds_of("partial-map", FINAL)
    final = final_in(states[-1], algorithm(), case.federation, case.rounds)
    counted = case.federation.with_training(local_steps=0)
    heads = final.personalize(counted)["params"]["head"]["kernel"][0]
    assert (heads == case.initial()["head"]["kernel"]).all()


def test_local_steps_are_those_of_the_body():
    head, body = algorithm(head_epochs=2).schedules(toy_federation(local_steps=3))
    assert (head.epochs, head.steps, body.steps) == (2, None, 3)


@pytest.mark.slow
def test_with_everything_shared_heads_are_averaged_too():
    case = Case(participation=0.6, model=FourLayers(), share="all")
    common, heads = case.common(), case.batches("head", epochs(case, 1))
    states = case.states_of(algorithm(head_epochs=1, weighting="size"))
    model = case.initial()
    for t, cohort in enumerate(case.cohorts):
        trained = []
        for i in cohort:
            own = sgd(model, heads[t][i], case.x, case.y, case.rates[t], layers=["head"])
            body = fedrep.body_of(model)
            batches = common["batches"][t][i]
            trained.append(sgd(own, batches, case.x, case.y, case.rates[t], layers=body))
        share = case.sizes[cohort] / case.sizes[cohort].sum()
        model = jax.tree.map(lambda *x, s=share: np.tensordot(s, np.stack(x), 1), *trained)
        assert_close(states[t + 1].server["params"], model, f"round {t}")


@pytest.mark.thorough
def test_running_statistics_move_in_both_phases():
    federation = toy_federation(model=ConvNorm(), local_epochs=0)
    before, after = states_of(algorithm(), federation, 1)
    assert_close(after.server["params"], before.server["params"], "body", 1e-12)
    for name in ("mean", "var"):
        statistics = [s.server["batch_stats"]["bn"][name] for s in (before, after)]
        assert abs(statistics[0] - statistics[1]).max() > 1e-3


def test_remarks():
    ours = algorithm(final_head_epochs=2)
    assert ours.remarks(ours.prepare(toy_federation())) == [
        "scored after 2 local epochs of the head on a copy, after the last round only"
    ]
    assert algorithm().remarks(algorithm().prepare(toy_federation(share="all"))) == [
        "shares all layers, as set by share"
    ]


def test_the_body_need_not_train():
    pfl.Simulation(algorithm(), toy_federation(local_epochs=0)).check()
