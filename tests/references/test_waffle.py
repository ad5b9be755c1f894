"""WAFFLE's reference: weights and their schedule, its limits SCAFFOLD and local training."""

import numpy as np
import pytest

from tests.references import local, network, scaffold, waffle
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    flat,
    identical,
    longer,
    stack,
)

# ------------------------------------------------------------------ the weights


def test_waffle_weights_of_the_worked_example():
    weights = waffle.raw_weights([0.0, 1.0, 2.0, 3.0], 0, 0.5, 0.5)
    np.testing.assert_allclose(weights, [0.5, 0.5 - 1 / 7, 0, 0], rtol=1e-14)
    normalised = weights / weights.sum()
    np.testing.assert_allclose(normalised, [0.583333, 0.416667, 0, 0], atol=5e-7)
    moved = waffle.raw_weights([3.0, 1.0, 0.0, 2.0], 2, 0.5, 0.5)
    np.testing.assert_allclose(moved, weights[[3, 1, 0, 2]], rtol=1e-14)
    scaled = waffle.raw_weights([0.0, 1e-9, 2e-9, 3e-9], 0, 0.5, 0.5)
    np.testing.assert_allclose(scaled, weights, rtol=1e-12)


def test_the_specs_vector():
    raw = waffle.raw_weights([0.0, 1.0, 2.0, 3.0], 0, 0.5, 0.5)
    np.testing.assert_allclose(raw / raw.sum(), [0.583333, 0.416667, 0, 0], atol=1e-6)


def test_waffle_schedule_of_the_paper():
    rounds = np.array([1, 25, 50, 75, 90, 100])
    expected = [0.958, 0.832, 0.5, 0.168, 0.072, 0.039]
    np.testing.assert_allclose(waffle.personalization(rounds, 100), expected, atol=5e-4)


@pytest.mark.parametrize("distances", [[0.0, 0.0, 0.0], [0.0, 2.0, 2.0], [0.0, 5.0], [0.0]])
def test_waffle_equal_distances_give_equal_weights(distances):
    weights = waffle.raw_weights(distances, 0, 0.3, 0.3)
    np.testing.assert_array_equal(weights, 0.3)


def test_waffle_cut_off_is_smoothed_too():
    count, horizon = 4, 20
    previous = before = np.full(count, 1 / count)
    smoothed = {}
    for number in range(1, horizon + 1):
        abar, raw = waffle.calc_weights(
            [0.0, 1.0, 1.1, 1.5], 0, number, horizon, previous, before, delta_omega=0.5
        )
        np.testing.assert_allclose([raw.sum(), abar.sum()], 1.0, rtol=1e-14)
        assert raw[0] == raw.max() and raw.min() == 0.0
        assert (number >= 19) == np.array_equal(raw, np.eye(count)[0])
        smoothed[number], before, previous = abar, previous, raw
    assert smoothed[1].min() > 0.0  # the initial history of 1/N
    assert smoothed[20][1] > 0.0  # R = 20: local from round 21 on
    _, first = waffle.calc_weights([0.0, 1.0], 0, 95, 100, np.ones(2) / 2, np.ones(2) / 2)
    np.testing.assert_array_equal(first, [1.0, 0.0])
    _, late = waffle.calc_weights([0.0, 1.0], 0, 94, 100, np.ones(2) / 2, np.ones(2) / 2)
    np.testing.assert_array_equal(late, [0.5, 0.5])


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("control_rule", waffle.CONTROL_RULES)
@pytest.mark.parametrize("control_update", scaffold.CONTROL_UPDATES)
def test_waffle_with_uniform_weights_is_scaffold(setting, control_rule, control_update):
    common = {**setting, "server_rate": 0.8, "control_update": control_update}
    forced = np.full((ROUNDS, COUNT), 1 / COUNT)
    personal = waffle.run(**common, control_rule=control_rule, forced=forced)
    for models, expected in zip(personal, scaffold.run(**common), strict=True):
        assert_same(models["alice"], expected["global"], rtol=1e-9, atol=1e-12)
        assert_same(models["control"], expected["control"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("control_rule", waffle.CONTROL_RULES)
def test_waffle_with_alice_alone_is_local_training(setting, control_rule):
    forced = np.tile(np.eye(COUNT)[2], (ROUNDS, 1))
    personal = waffle.run(**setting, alice=2, control_rule=control_rule, forced=forced)
    for models, expected in zip(personal, local.run(**setting), strict=True):
        assert_same(models["alice"], expected["personalized"][2], rtol=1e-9, atol=1e-12)


def test_waffle_switched_to_alice_alone_drifts_under_the_literal_rule_only(setting):
    common = {**longer(setting, 5), "alice": 1}
    forced = [np.full(COUNT, 1 / COUNT)] * 2 + [np.eye(COUNT)[1]] * 3
    rebased = waffle.run(**common, forced=forced)
    literal = waffle.run(**common, forced=forced, control_rule="literal")

    def offset(models):
        return flat(models["control"]) - flat(models["controls"][1])

    drift = offset(literal[1])
    assert np.abs(drift).max() > 1e-3
    for t in (2, 3, 4):
        np.testing.assert_array_equal(offset(rebased[t]), 0.0)
        np.testing.assert_allclose(offset(literal[t]), drift, rtol=1e-10, atol=1e-14)
    for t in (3, 4):
        batches, rate = common["batches"][t][1], common["learning_rate"][t]
        alone = sgd(rebased[t - 1]["alice"], batches, setting["x"], setting["y"], rate)
        assert_same(rebased[t]["alice"], alone, rtol=1e-9, atol=1e-12)
        drifting = sgd(
            literal[t - 1]["alice"],
            batches,
            setting["x"],
            setting["y"],
            rate,
            extra_gradient=lambda params: network.unflat(drift, params),
        )
        assert_same(literal[t]["alice"], drifting, rtol=1e-9, atol=1e-12)


def test_waffle_schedule_in_a_run(setting):
    common = {**longer(setting, 10), "alice": 3}
    rebased = waffle.run(**common)
    raw = [np.full(COUNT, 1 / COUNT)] * 2 + [models["raw"] for models in rebased]
    for t, models in enumerate(rebased):
        np.testing.assert_allclose(models["weights"], np.mean(raw[t : t + 3], axis=0), rtol=1e-14)
        np.testing.assert_allclose(
            flat(models["control"]), models["weights"] @ stack(models["controls"]), atol=1e-13
        )
        assert models["distances"][3] == 0.0
    np.testing.assert_array_equal(rebased[-1]["raw"], np.eye(COUNT)[3])
    begun = waffle.run(**{**setting, "alice": 3, "total_rounds": 10})
    assert_same(begun[-1]["alice"], rebased[ROUNDS - 1]["alice"])
    control = network.zeros_like(setting["initial"])
    before = [control] * COUNT
    for models in waffle.run(**common, control_rule="literal"):
        changes = [network.subtract(a, b) for a, b in zip(models["controls"], before, strict=True)]
        control = network.add(control, network.combine(models["weights"], changes))
        before = models["controls"]
        assert_same(models["control"], control)


def test_waffle_of_identical_agents_is_sgd(setting):
    same = identical(setting)
    model = setting["initial"]
    for t, models in enumerate(waffle.run(**same, total_rounds=100)):
        model = sgd(model, same["batches"][t][0], setting["x"], setting["y"], RATES[t])
        np.testing.assert_allclose(models["weights"], 1 / COUNT, rtol=1e-13)
        assert_same(models["alice"], model, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="Unknown control rule"):
        waffle.run(**setting, control_rule="both")


@pytest.mark.parametrize("rule", waffle.CONTROL_RULES)
def test_waffle_of_some_agents(setting, rule):
    """PARTIAL has client 2 in the first two rounds, among 2 and 3 of the 4 clients."""
    begun, *_, last = states = waffle.run(
        **{**setting, "cohorts": PARTIAL}, alice=2, control_rule=rule, total_rounds=10
    )
    control, controls = np.zeros_like(flat(setting["initial"])), np.zeros((COUNT, 1))
    history = [np.full(COUNT, 1 / COUNT)] * 2
    for t, models in enumerate(states[:2]):
        cohort = PARTIAL[t]
        away = [i for i in range(COUNT) if i not in cohort]
        assert not models["weights"][away].any() and not models["raw"][away].any()
        total = history[-2] + history[-1] + models["raw"]
        total[away] = 0.0
        np.testing.assert_allclose(models["weights"], total / total.sum(), rtol=1e-13)
        history.append(models["raw"])
        renewed = stack(models["controls"])
        np.testing.assert_array_equal(renewed[away], (controls + 0 * renewed)[away])
        if rule == "rebased":
            control = models["weights"] @ renewed
        else:
            control = control + len(cohort) / COUNT * models["weights"] @ (renewed - controls)
        np.testing.assert_allclose(flat(models["control"]), control, rtol=1e-11, atol=1e-14)
        controls = renewed
    assert not last["weights"].any()  # no Alice, no round
    assert_same(last["alice"], states[1]["alice"])
    assert_same(last["control"], states[1]["control"])
    assert np.isnan(begun["distances"][[1, 3]]).all()


def test_waffle_of_uniform_weights_and_the_literal_rule_samples_like_scaffold(setting):
    """Equal weights over the cohort: c moves by the changes over N, as in SCAFFOLD."""
    cohorts = [[0, 2], [1, 2, 3], [0, 1, 2]]
    forced = np.zeros((ROUNDS, COUNT))
    for t, cohort in enumerate(cohorts):
        forced[t, cohort] = 1 / len(cohort)
    common = {**setting, "cohorts": cohorts}
    ours = waffle.run(**common, alice=2, control_rule="literal", forced=forced)
    for models, expected in zip(ours, scaffold.run(**common), strict=True):
        assert_same(models["alice"], expected["global"], rtol=1e-9, atol=1e-12)
        assert_same(models["control"], expected["control"], rtol=1e-9, atol=1e-12)


def test_distances_of_gradients_leave_the_corrections_out(setting):
    """In the first round there is none: plain SGD's update is its gradients times the rate."""
    common = {**setting, "alice": 1}
    updates, gradients = (waffle.run(**common, distance=one) for one in waffle.DISTANCES)
    np.testing.assert_allclose(
        updates[0]["distances"], RATES[0] * gradients[0]["distances"], rtol=1e-12
    )
    assert_same(updates[0]["alice"], gradients[0]["alice"])
    second = updates[1]["distances"] - RATES[1] * gradients[1]["distances"]
    assert np.abs(second).max() > 1e-3
    with pytest.raises(ValueError, match="Unknown distance 'weights'"):
        waffle.run(**common, distance="weights")
