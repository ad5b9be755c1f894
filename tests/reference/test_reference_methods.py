"""The references of cwFedAVG, SCAFFOLD, WAFFLE, Weight Erosion and pFedLA, checked themselves."""

from itertools import pairwise

import numpy as np
import pytest

from tests.reference import (
    cwfedavg,
    fedavg,
    local,
    network,
    pfedla,
    scaffold,
    waffle,
    weight_erosion,
)
from tests.reference.local_sgd import sgd

SIZES = (9, 4, 6, 11)
COUNT = len(SIZES)
CLASSES = 4
ROUNDS = 3
RATES = (0.5, 0.4, 0.32)
PARTIAL = [[0, 2], [1, 2, 3], [1]]


def flat(model):
    return network.flat(model)


def stack(models):
    return np.stack([network.flat(model) for model in models])


def assert_same(model, other, **tolerance):
    np.testing.assert_allclose(
        flat(model), flat(other), **{"rtol": 1e-11, "atol": 1e-13, **tolerance}
    )


def differences(function, vector, step=1e-5):
    """Central differences of a scalar function."""
    slopes = np.zeros_like(vector)
    for k in range(len(vector)):
        shift = np.zeros_like(vector)
        shift[k] = step
        slopes[k] = (function(vector + shift) - function(vector - shift)) / (2 * step)
    return slopes


@pytest.fixture
def setting():
    """Four clients of unequal size, each rich in a class of its own; keywords of `run`."""
    rng = np.random.default_rng(2)
    bounds = np.cumsum((0, *SIZES))
    samples = [np.arange(a, b) for a, b in pairwise(bounds)]
    y = np.where(
        rng.random(sum(SIZES)) < 0.8,
        np.repeat(np.arange(COUNT), SIZES),
        rng.integers(0, CLASSES, sum(SIZES)),
    )

    def epoch(own):
        order = rng.permutation(own)
        return [order[k : k + 4] for k in range(0, len(order), 4)]

    return {
        "initial": network.random_parameters(rng, 5, 6, CLASSES),
        "clients": [{"samples": own} for own in samples],
        "rounds": ROUNDS,
        "x": rng.normal(size=(sum(SIZES), 5)) + np.eye(5)[y],
        "y": y,
        "sizes": SIZES,
        "cohorts": [list(range(COUNT))] * ROUNDS,
        "batches": [[epoch(own) for own in samples] for _ in range(ROUNDS)],
        "learning_rate": RATES,
    }


def longer(setting, rounds):
    """The same federation over more rounds: cohorts, batches and rates repeated."""
    picks = [t % ROUNDS for t in range(rounds)]
    cycled = {key: [setting[key][t] for t in picks] for key in ("cohorts", "batches")}
    return {**setting, **cycled, "rounds": rounds, "learning_rate": [RATES[t] for t in picks]}


def identical(setting):
    """Every client has the first one's samples and batches."""
    return {
        **setting,
        "clients": [setting["clients"][0]] * COUNT,
        "sizes": [SIZES[0]] * COUNT,
        "batches": [[of_round[0]] * COUNT for of_round in setting["batches"]],
    }


# ------------------------------------------------------------------ cwFedAVG: the weights


def test_cwfedavg_weights_of_the_worked_example():
    shares = np.array([[0.5, 0.5], [0.25, 0.75]])
    weights = cwfedavg.class_weights((10, 30), shares)
    np.testing.assert_allclose(weights, [[0.4, 2 / 11 * 1.0], [0.6, 9 / 11]], rtol=1e-14)
    expected = [[0.2909, 0.7091], [0.2364, 0.7636]]
    np.testing.assert_allclose(cwfedavg.mixing_matrix(shares, weights), expected, atol=5e-5)


def test_cwfedavg_class_weights_are_the_counts_of_the_class():
    counts = np.array([[3, 0, 1], [2, 0, 2], [0, 0, 5]])
    sizes = counts.sum(axis=1)
    weights = cwfedavg.class_weights(sizes, counts / sizes[:, None])
    np.testing.assert_allclose(weights[:, 0], [3 / 5, 2 / 5, 0], rtol=1e-14)
    np.testing.assert_array_equal(weights[:, 1], 0.0)
    np.testing.assert_allclose(weights[:, 2], [1 / 8, 2 / 8, 5 / 8], rtol=1e-14)
    disjoint = cwfedavg.class_weights((1, 3, 2), np.eye(2)[[0, 1, 0]])
    mixing = cwfedavg.mixing_matrix(np.eye(2)[[0, 1, 0]], disjoint)
    np.testing.assert_allclose(mixing, [[1 / 3, 0, 2 / 3], [0, 1, 0], [1 / 3, 0, 2 / 3]])


def test_cwfedavg_uniform_shares_give_fedavg_and_class_order_does_not_matter():
    uniform = np.full((COUNT, 3), 1 / 3)
    mixing = cwfedavg.mixing_matrix(uniform, cwfedavg.class_weights(SIZES, uniform))
    np.testing.assert_allclose(mixing, np.tile(np.array(SIZES) / sum(SIZES), (COUNT, 1)))
    shares = np.random.default_rng(0).dirichlet(np.ones(3), COUNT)
    mixing = cwfedavg.mixing_matrix(shares, cwfedavg.class_weights(SIZES, shares))
    moved = shares[:, [2, 0, 1]]
    np.testing.assert_allclose(
        cwfedavg.mixing_matrix(moved, cwfedavg.class_weights(SIZES, moved)), mixing, rtol=1e-13
    )


def test_cwfedavg_shares():
    np.testing.assert_allclose(cwfedavg.label_shares(np.array([2, 0, 2, 2]), 4), [0.25, 0, 0.75, 0])
    np.testing.assert_array_equal(cwfedavg.label_shares(np.array([], int), 4), 0.0)
    params = network.random_parameters(np.random.default_rng(0), 2, 2, 3)
    params["head"]["kernel"] = np.array([[3.0, 0.0, 0.0], [4.0, 0.0, 5.0]])
    np.testing.assert_allclose(cwfedavg.norm_shares(params), [0.5, 0.0, 0.5], rtol=1e-15)
    params["head"]["kernel"] = np.zeros((2, 3))
    np.testing.assert_allclose(cwfedavg.norm_shares(params), 1 / 3, rtol=1e-15)
    np.testing.assert_array_equal(
        flat(cwfedavg.regularizer_gradient(params, np.full(3, 1 / 3), 10.0)), 0.0
    )


def test_cwfedavg_regularizer_gradient_equals_central_differences(setting):
    params, target = setting["initial"], np.array([0.6, 0.0, 0.1, 0.3])
    gradient = flat(cwfedavg.regularizer_gradient(params, target, 7.0))

    def penalty(vector):
        return cwfedavg.regularizer(network.unflat(vector, params), target, 7.0)

    numeric = differences(penalty, flat(params))
    np.testing.assert_allclose(gradient, numeric, rtol=1e-7, atol=1e-9)
    distance = np.linalg.norm(cwfedavg.norm_shares(params) - target)
    np.testing.assert_allclose(penalty(flat(params)), 3.5 * distance, rtol=1e-9)
    reached = cwfedavg.norm_shares(params)
    assert np.isfinite(flat(cwfedavg.regularizer_gradient(params, reached, 7.0))).all()


# ------------------------------------------------------------------ cwFedAVG: the rounds


@pytest.mark.parametrize("cohorts", [[list(range(COUNT))] * ROUNDS, PARTIAL])
@pytest.mark.parametrize(("shares", "wdr_weight"), [("labels", 0.0), ("norms", 0.0), ("norms", 5)])
def test_cwfedavg_class_models_and_fused_matrix_agree(setting, cohorts, shares, wdr_weight):
    common = {**setting, "cohorts": cohorts, "shares": shares, "wdr_weight": wdr_weight}
    literal, fused = cwfedavg.run(**common), cwfedavg.run(**common, fused=True)
    for t in range(ROUNDS):
        for key in ("weights", "shares", "class_weights"):
            np.testing.assert_allclose(literal[t][key], fused[t][key], rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(
            stack(literal[t]["personalized"]), stack(fused[t]["personalized"]), rtol=1e-10
        )
        weights = literal[t]["weights"]
        assert weights.min() >= 0.0
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-13)
        absent = sorted(set(range(COUNT)) - set(cohorts[t]))
        np.testing.assert_array_equal(literal[t]["class_weights"][absent], 0.0)
        for i in range(COUNT):
            kept = np.array_equal(weights[i], np.eye(COUNT)[i])
            assert kept or not weights[i, absent].any()


def test_cwfedavg_starts_everybody_anew_from_the_head_it_holds(setting):
    partial = {**setting, "cohorts": PARTIAL}
    held = [setting["initial"]] * COUNT
    for t, models in enumerate(cwfedavg.run(**partial, wdr_weight=0.0)):
        for i in PARTIAL[t]:
            batches, rate = setting["batches"][t][i], RATES[t]
            assert_same(
                models["trained"][i], sgd(held[i], batches, setting["x"], setting["y"], rate)
            )
        held = [models["trained"].get(i, held[i]) for i in range(COUNT)]
        expected = [cwfedavg.norm_shares(model) for model in held]
        np.testing.assert_allclose(models["shares"], expected, rtol=1e-13)
        held = models["personalized"]


def test_cwfedavg_without_a_class_scales_the_other_shares_up(setting):
    y = np.repeat([0, 0, 1, 2], SIZES)
    y[0] = 1  # client 0: one of nine in class 1
    common = {**setting, "y": y, "shares": "labels", "wdr_weight": 0.0, "rounds": 1}
    (models,) = cwfedavg.run(**{**common, "cohorts": [[1]]})
    assert [model is None for model in models["class_models"]] == [False, True, True, True]
    np.testing.assert_array_equal(models["weights"], np.eye(COUNT)[[1, 1, 2, 3]])
    assert_same(models["personalized"][0], models["trained"][1])
    assert models["personalized"][2] is setting["initial"]
    (nobody,) = cwfedavg.run(**{**common, "cohorts": [[]]})
    np.testing.assert_array_equal(nobody["weights"], np.eye(COUNT))
    assert all(model is setting["initial"] for model in nobody["personalized"])


def test_cwfedavg_with_uniform_labels_is_fedavg(setting):
    y = setting["y"].copy()
    samples = [np.arange(4 * i, 4 * i + 4) for i in range(COUNT)]
    for own in samples:
        y[own] = np.arange(CLASSES)
    same = {
        **setting,
        "y": y,
        "clients": [{"samples": own} for own in samples],
        "batches": [[[own] for own in samples]] * ROUNDS,
    }
    averaged = fedavg.run(**same)
    for t, models in enumerate(cwfedavg.run(**same, shares="labels", wdr_weight=0.0)):
        for model in (*models["personalized"], *models["class_models"]):
            assert_same(model, averaged[t]["global"])


def test_cwfedavg_regularizer_brings_the_norms_to_the_labels(setting):
    x, y = setting["x"], setting["y"]
    for client in setting["clients"]:
        own = client["samples"]
        target = cwfedavg.label_shares(y[own], CLASSES)

        def extra(params, target=target):
            return cwfedavg.regularizer_gradient(params, target, 10.0)

        def distance(params, target=target):
            return np.linalg.norm(cwfedavg.norm_shares(params) - target)

        without = sgd(setting["initial"], [own] * 100, x, y, 0.02)
        regularized = sgd(setting["initial"], [own] * 100, x, y, 0.02, extra_gradient=extra)
        assert distance(regularized) < 0.5 * distance(without)


def test_cwfedavg_regularizer_takes_part_in_the_rounds(setting):
    (models,) = cwfedavg.run(**{**setting, "rounds": 1}, wdr_weight=3.0)
    own = setting["clients"][3]["samples"]
    target = cwfedavg.label_shares(setting["y"][own], CLASSES)
    theta = flat(setting["initial"])
    for batch in setting["batches"][0][3]:
        params = network.unflat(theta, setting["initial"])
        _, gradient = network.loss_and_gradient(params, setting["x"][batch], setting["y"][batch])
        penalty = cwfedavg.regularizer_gradient(params, target, 3.0)
        theta = theta - RATES[0] * (flat(gradient) + flat(penalty))
    np.testing.assert_allclose(flat(models["trained"][3]), theta, rtol=1e-11)
    with pytest.raises(ValueError, match="Unknown shares"):
        cwfedavg.run(**setting, shares="gradients")


# ------------------------------------------------------------------ SCAFFOLD


@pytest.mark.parametrize("cohorts", [[list(range(COUNT))] * ROUNDS, PARTIAL])
def test_scaffold_mean_gradient_is_option_two(setting, cohorts):
    common = {**setting, "cohorts": cohorts, "server_rate": 0.7}
    mean = scaffold.run(**common)
    second = scaffold.run(**common, control_update="option_two")
    for a, b in zip(mean, second, strict=True):
        assert_same(a["global"], b["global"], rtol=1e-10)
        assert_same(a["control"], b["control"], rtol=1e-10, atol=1e-12)
        for own, other in zip(a["controls"], b["controls"], strict=True):
            assert_same(own, other, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="Unknown control update"):
        scaffold.run(**setting, control_update="option_one")


@pytest.mark.parametrize("cohorts", [[list(range(COUNT))] * ROUNDS, PARTIAL])
def test_scaffold_control_is_the_mean_of_the_controls(setting, cohorts):
    before = np.zeros((COUNT, len(flat(setting["initial"]))))
    for t, models in enumerate(scaffold.run(**{**setting, "cohorts": cohorts})):
        controls = stack(models["controls"])
        np.testing.assert_allclose(
            flat(models["control"]), controls.mean(axis=0), rtol=1e-9, atol=1e-13
        )
        changed = set(np.flatnonzero((controls != before).any(axis=1)))
        assert changed == set(cohorts[t])
        before = controls


def test_scaffold_first_round_is_uniform_fedavg(setting):
    common = {**setting, "rounds": 1}
    plain = fedavg.run(**{**common, "sizes": [1] * COUNT})[0]["global"]
    assert_same(scaffold.run(**common)[0]["global"], plain)
    half = scaffold.run(**common, server_rate=0.5)[0]["global"]
    middle = network.combine([0.5, 0.5], [setting["initial"], plain])
    assert_same(half, middle)


def test_scaffold_round_written_with_vectors(setting):
    first, second = scaffold.run(**{**setting, "rounds": 2, "cohorts": PARTIAL})
    like, moves, changes = setting["initial"], [], []
    for i in PARTIAL[1]:
        theta, correction = flat(first["global"]), flat(first["control"])
        own = flat(first["controls"][i])
        for batch in setting["batches"][1][i]:
            model = network.unflat(theta, like)
            _, g = network.loss_and_gradient(model, setting["x"][batch], setting["y"][batch])
            theta = theta - RATES[1] * (flat(g) - own + correction)
        moves.append(theta - flat(first["global"]))
        changes.append(-correction - moves[-1] / (len(setting["batches"][1][i]) * RATES[1]))
    np.testing.assert_allclose(
        flat(second["global"]), flat(first["global"]) + np.mean(moves, axis=0), rtol=1e-11
    )
    np.testing.assert_allclose(
        flat(second["control"]),
        flat(first["control"]) + np.sum(changes, axis=0) / COUNT,
        rtol=1e-9,
        atol=1e-13,
    )


def test_scaffold_of_identical_clients_is_sgd(setting):
    same = identical(setting)
    model = setting["initial"]
    for t, models in enumerate(scaffold.run(**same)):
        model = sgd(model, same["batches"][t][0], setting["x"], setting["y"], RATES[t])
        assert_same(models["global"], model, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("control_update", scaffold.CONTROL_UPDATES)
def test_scaffold_client_without_steps_sends_zeros(setting, control_update):
    batches = [[*of_round[:-1], []] for of_round in setting["batches"]]
    history = scaffold.run(**{**setting, "batches": batches}, control_update=control_update)
    without = [[0, 1, 2]] * ROUNDS
    three = scaffold.run(**{**setting, "cohorts": without, "server_rate": 0.75})
    for models, expected in zip(history, three, strict=True):
        np.testing.assert_array_equal(flat(models["controls"][3]), 0.0)
        assert_same(models["global"], expected["global"], rtol=1e-9, atol=1e-12)
    nobody = scaffold.run(**{**setting, "rounds": 1, "cohorts": [[]]})[0]
    assert nobody["global"] is setting["initial"]


# ------------------------------------------------------------------ WAFFLE: the weights


def test_waffle_weights_of_the_worked_example():
    weights = waffle.raw_weights([0.0, 1.0, 2.0, 3.0], 0, 0.5, 0.5)
    np.testing.assert_allclose(weights, [0.5, 0.5 - 1 / 7, 0, 0], rtol=1e-14)
    normalised = weights / weights.sum()
    np.testing.assert_allclose(normalised, [0.583333, 0.416667, 0, 0], atol=5e-7)
    moved = waffle.raw_weights([3.0, 1.0, 0.0, 2.0], 2, 0.5, 0.5)
    np.testing.assert_allclose(moved, weights[[3, 1, 0, 2]], rtol=1e-14)
    scaled = waffle.raw_weights([0.0, 1e-9, 2e-9, 3e-9], 0, 0.5, 0.5)
    np.testing.assert_allclose(scaled, weights, rtol=1e-12)


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


# ------------------------------------------------------------------ WAFFLE: the rounds


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


def test_waffle_of_identical_agents_is_sgd_and_needs_everybody(setting):
    same = identical(setting)
    model = setting["initial"]
    for t, models in enumerate(waffle.run(**same, total_rounds=100)):
        model = sgd(model, same["batches"][t][0], setting["x"], setting["y"], RATES[t])
        np.testing.assert_allclose(models["weights"], 1 / COUNT, rtol=1e-13)
        assert_same(models["alice"], model, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="full participation"):
        waffle.run(**{**setting, "cohorts": PARTIAL})
    with pytest.raises(ValueError, match="Unknown control rule"):
        waffle.run(**setting, control_rule="both")


# ------------------------------------------------------------------ Weight Erosion


def test_weight_erosion_without_penalty_is_uniform_fedavg(setting):
    plain = fedavg.run(**{**setting, "sizes": [1] * COUNT})
    eroding = weight_erosion.run(**setting, distance_penalty=0.0)
    for models, expected in zip(eroding, plain, strict=True):
        np.testing.assert_array_equal(models["alpha"], 1.0)
        assert_same(models["alice"], expected["global"], rtol=1e-10)


def test_weight_erosion_with_a_large_penalty_is_local_training(setting):
    eroding = weight_erosion.run(**setting, distance_penalty=1e3, alice=1)
    for models, expected in zip(eroding, local.run(**setting), strict=True):
        np.testing.assert_array_equal(models["alpha"], np.eye(COUNT)[1])
        assert_same(models["alice"], expected["personalized"][1], rtol=1e-10)


def test_weight_erosion_round_written_with_updates(setting):
    history = weight_erosion.run(**setting, distance_penalty=0.2, alice=2)
    model, alpha = setting["initial"], np.ones(COUNT)
    for t, models in enumerate(history):
        moves = np.array(
            [
                flat(sgd(model, batches, setting["x"], setting["y"], RATES[t])) - flat(model)
                for batches in setting["batches"][t]
            ]
        )
        apart = np.linalg.norm(moves - moves[2], axis=1) / np.linalg.norm(moves[2])
        np.testing.assert_allclose(models["distances"], apart, rtol=1e-9)
        after = np.maximum(0, alpha - 0.2 * apart)
        assert (after <= alpha).all() and after[2] == 1.0
        np.testing.assert_allclose(models["alpha"], after, rtol=1e-9, atol=1e-12)
        expected = flat(model) + after @ moves / after.sum()
        np.testing.assert_allclose(flat(models["alice"]), expected, rtol=1e-9)
        model, alpha = models["alice"], after


def test_weight_erosion_size_penalty_counts_passes():
    common = {"distance_penalty": 0.1, "size_penalty": 0.5, "batch_size": 4}
    alpha, distances = np.array([1.0, 1.0, 0.1, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    third = weight_erosion.eroded(alpha, distances, 3, (8, 8, 8, 3), **common)
    np.testing.assert_allclose(third, [1.0, 0.85, 0.0, 0.8], rtol=1e-14)  # floor(8/8), floor(8/3)
    first = weight_erosion.eroded(alpha, distances, 1, (8, 8, 8, 0), **common)
    np.testing.assert_allclose(first, [1.0, 0.9, 0.0, 0.9], rtol=1e-14)


def test_weight_erosion_of_an_alice_without_steps_erodes_nothing(setting):
    batches = [[[], *of_round[1:]] for of_round in setting["batches"]]
    for models in weight_erosion.run(**{**setting, "batches": batches}, distance_penalty=1.0):
        np.testing.assert_array_equal(models["alpha"], 1.0)
    with pytest.raises(ValueError, match="full participation"):
        weight_erosion.run(**{**setting, "cohorts": PARTIAL}, distance_penalty=1.0)


# ------------------------------------------------------------------ pFedLA: the hypernetwork

BLOCKS = ("hidden", "head")


def hypernetworks(blocks=2, weighting="softmax", clients=COUNT, noise=0.0):
    """One small hypernetwork per client; `noise` moves the output layers off their start."""
    rng = np.random.default_rng(5)
    drawn = [
        pfedla.random_hypernetwork(
            rng, embedding=4, hidden=6, blocks=blocks, clients=clients, weighting=weighting
        )
        for _ in range(clients)
    ]
    for _, psi in drawn:
        for layer in psi["output"]:
            layer["kernel"] = layer["kernel"] + noise * rng.normal(size=layer["kernel"].shape)
            layer["bias"] = layer["bias"] + noise * rng.normal(size=layer["bias"].shape)
    return {"embeddings": [v for v, _ in drawn], "hypernetworks": [psi for _, psi in drawn]}


def different_models():
    """One initial model per client."""
    rng = np.random.default_rng(8)
    return [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(COUNT)]


def leaves(vector, psi):
    """All numbers of (v, psi) as one vector."""
    layers = (*psi["trunk"], *psi["output"])
    return np.concatenate(
        [vector, *(np.ravel(layer[name]) for layer in layers for name in ("kernel", "bias"))]
    )


def rebuilt(numbers, vector, psi):
    """The inverse of `leaves`."""
    start = len(vector)
    rebuilt_psi = {"trunk": [], "output": []}
    for part in ("trunk", "output"):
        for layer in psi[part]:
            copy = {}
            for name in ("kernel", "bias"):
                stop = start + layer[name].size
                copy[name] = numbers[start:stop].reshape(layer[name].shape)
                start = stop
            rebuilt_psi[part].append(copy)
    return numbers[: len(vector)], rebuilt_psi


@pytest.mark.parametrize("weighting", pfedla.WEIGHTINGS)
def test_pfedla_vjp_equals_central_differences(weighting):
    drawn = hypernetworks(weighting=weighting, noise=0.5)
    cotangent = np.random.default_rng(1).normal(size=(2, COUNT))
    dead = 0
    for vector, psi in zip(drawn["embeddings"], drawn["hypernetworks"], strict=True):
        found = leaves(*pfedla.hypernetwork_vjp(vector, psi, cotangent, weighting))

        def projected(numbers, vector=vector, psi=psi):
            return np.sum(
                cotangent * pfedla.hypernetwork(*rebuilt(numbers, vector, psi), weighting)
            )

        numeric = differences(projected, leaves(vector, psi), 1e-6)
        np.testing.assert_allclose(found, numeric, rtol=1e-5, atol=1e-8)
        dead += np.sum(pfedla.hypernetwork(vector, psi, weighting) == 0.0)
    assert (dead > 0) == (weighting == "relu_norm")


@pytest.mark.parametrize("weighting", pfedla.WEIGHTINGS)
def test_pfedla_weights_lie_on_the_simplex(weighting):
    start, moved = (hypernetworks(weighting=weighting, noise=noise) for noise in (0.0, 0.5))
    for drawn in (start, moved):
        for vector, psi in zip(drawn["embeddings"], drawn["hypernetworks"], strict=True):
            alpha = pfedla.hypernetwork(vector, psi, weighting)
            assert alpha.shape == (2, COUNT) and alpha.min() >= 0.0
            np.testing.assert_allclose(alpha.sum(axis=1), 1.0, rtol=1e-14)
            if drawn is start and weighting == "softmax":
                np.testing.assert_array_equal(alpha, 1 / COUNT)
    np.testing.assert_array_equal(pfedla.normalised(-np.ones(4), "relu_norm"), 0.25)
    np.testing.assert_array_equal(pfedla.normalised_vjp(-np.ones(4), np.ones(4), "relu_norm"), 0.0)
    with pytest.raises(ValueError, match="Unknown weighting"):
        pfedla.normalised(np.ones(4), "sparsemax")


def test_pfedla_cotangent_is_the_derivative_of_the_mixed_model(setting):
    rng = np.random.default_rng(3)
    models = [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(COUNT)]
    change = network.random_parameters(rng, 5, 6, CLASSES)
    cotangent = pfedla.weight_cotangent(change, models, BLOCKS)
    alpha = rng.normal(size=(2, COUNT))

    def inner(numbers):
        mixed = pfedla.aggregate(numbers.reshape(2, COUNT), models, BLOCKS)
        return network.dot(mixed, change)

    np.testing.assert_allclose(cotangent.ravel(), differences(inner, alpha.ravel()), rtol=1e-7)
    swapped = pfedla.weight_cotangent(change, models, BLOCKS[::-1])
    np.testing.assert_array_equal(swapped, cotangent[::-1])


@pytest.mark.parametrize("weighting", pfedla.WEIGHTINGS)
def test_pfedla_hypernetwork_steps_descend_on_a_quadratic(setting, weighting):
    rng = np.random.default_rng(4)
    drawn = hypernetworks(weighting=weighting, noise=0.1)
    models = [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(COUNT)]
    targets = [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(COUNT)]

    def loss(i, vector, psi):
        mixed = pfedla.aggregate(pfedla.hypernetwork(vector, psi, weighting), models, BLOCKS)
        return 0.5 * network.squared_distance(mixed, targets[i]), mixed

    for i in range(COUNT):
        vector, psi = drawn["embeddings"][i], drawn["hypernetworks"][i]
        before, mixed = loss(i, vector, psi)
        change = network.scale(0.1, network.subtract(targets[i], mixed))  # -eta gradient
        cotangent = pfedla.weight_cotangent(change, models, BLOCKS)
        new_vector, new_psi = pfedla.step(vector, psi, cotangent, 1e-3, weighting)
        for moved in ((new_vector, new_psi), (new_vector, psi), (vector, new_psi)):
            assert loss(i, *moved)[0] < before
        backward = pfedla.step(vector, psi, cotangent, -1e-3, weighting)
        assert loss(i, *backward)[0] > before


# ------------------------------------------------------------------ pFedLA: the rounds


def test_pfedla_first_round_written_out(setting):
    drawn, initial = hypernetworks(noise=0.3), different_models()
    common = {**setting, "initial": initial, "cohorts": PARTIAL, "rounds": 1}
    (models,) = pfedla.run(**common, blocks=BLOCKS, **drawn, hypernetwork_rate=0.1)
    for i in range(COUNT):
        vector, psi = drawn["embeddings"][i], drawn["hypernetworks"][i]
        if i in PARTIAL[0]:
            mixed = pfedla.aggregate(pfedla.hypernetwork(vector, psi), initial, BLOCKS)
            assert_same(models["received"][i], mixed)
            batches = setting["batches"][0][i]
            trained = sgd(models["received"][i], batches, setting["x"], setting["y"], RATES[0])
            assert_same(models["uploaded"][i], trained)
            change = network.subtract(trained, models["received"][i])
            cotangent = pfedla.weight_cotangent(change, initial, BLOCKS)
            vector, psi = pfedla.step(vector, psi, cotangent, 0.1)
            assert leaves(vector, psi).shape == (4 + 4 * 6 + 6 + 2 * 42 + 2 * 28,)
            assert np.abs(vector - drawn["embeddings"][i]).max() > 1e-6
        else:
            assert models["uploaded"][i] is initial[i]
            assert models["embedding"][i] is drawn["embeddings"][i]
            assert models["hypernetwork"][i] is drawn["hypernetworks"][i]
        np.testing.assert_allclose(
            leaves(models["embedding"][i], models["hypernetwork"][i]),
            leaves(vector, psi),
            rtol=1e-12,
            atol=1e-15,
        )
        alpha = pfedla.hypernetwork(vector, psi)
        np.testing.assert_allclose(models["alpha"][i], alpha, rtol=1e-12)
        assert not models["retained"].any()
        for row, layer in zip(alpha, BLOCKS, strict=True):
            for name in ("kernel", "bias"):
                parts = np.array([model[layer][name] for model in models["uploaded"]])
                expected = np.tensordot(row, parts, axes=1)
                np.testing.assert_allclose(models["personalized"][i][layer][name], expected)


def test_pfedla_from_one_common_model_moves_no_hypernetwork_in_the_first_round(setting):
    drawn = hypernetworks(noise=0.3)
    first, second, _ = pfedla.run(**setting, blocks=BLOCKS, **drawn, hypernetwork_rate=0.1)
    for i in range(COUNT):
        start = leaves(drawn["embeddings"][i], drawn["hypernetworks"][i])
        after = [leaves(m["embedding"][i], m["hypernetwork"][i]) for m in (first, second)]
        np.testing.assert_allclose(after[0], start, rtol=1e-12, atol=1e-15)
        assert np.abs(after[1] - start).max() > 1e-5


def test_pfedla_mixes_this_rounds_uploads_next_round_only(setting):
    """All at once: another order within the cohorts changes nothing."""
    drawn = hypernetworks(noise=0.3)
    backward = [cohort[::-1] for cohort in setting["cohorts"]]
    forth = pfedla.run(**setting, blocks=BLOCKS, **drawn, hypernetwork_rate=0.5)
    back = pfedla.run(
        **{**setting, "cohorts": backward}, blocks=BLOCKS, **drawn, hypernetwork_rate=0.5
    )
    for a, b in zip(forth, back, strict=True):
        np.testing.assert_array_equal(a["alpha"], b["alpha"])
        np.testing.assert_array_equal(stack(a["personalized"]), stack(b["personalized"]))
    for before, after in pairwise(forth):
        assert np.abs(after["alpha"] - before["alpha"]).max() > 1e-4
        for i, model in after["received"].items():
            assert model is before["personalized"][i]


def test_pfedla_frozen_at_uniform_is_uniform_fedavg(setting):
    drawn = hypernetworks()
    plain = fedavg.run(**{**setting, "sizes": [1] * COUNT})
    history = pfedla.run(**setting, blocks=BLOCKS, **drawn, hypernetwork_rate=0.0)
    for models, expected in zip(history, plain, strict=True):
        np.testing.assert_array_equal(models["alpha"], 1 / COUNT)
        for model in models["personalized"]:
            assert_same(model, expected["global"])


@pytest.mark.parametrize("cohorts", [[list(range(COUNT))] * ROUNDS, PARTIAL])
def test_pfedla_retaining_every_block_is_local_training(setting, cohorts):
    common = {**setting, "cohorts": cohorts}
    drawn = hypernetworks(noise=0.3)
    alone = local.run(**common)
    history = pfedla.run(**common, blocks=BLOCKS, **drawn, retained=2)
    for models, expected in zip(history, alone, strict=True):
        assert models["retained"].all()
        assert (models["alpha"] == np.eye(COUNT)[:, None]).all()
        for i in range(COUNT):
            assert_same(models["personalized"][i], expected["personalized"][i])
            assert_same(models["uploaded"][i], expected["personalized"][i])
            np.testing.assert_array_equal(
                leaves(models["embedding"][i], models["hypernetwork"][i]),
                leaves(drawn["embeddings"][i], drawn["hypernetworks"][i]),
            )


def test_heurpfedla_keeps_the_block_most_weighted_on_the_client_itself(setting):
    for noise in (0.0, 0.3):
        drawn = hypernetworks(noise=noise)
        plain = [
            pfedla.hypernetwork(v, psi)
            for v, psi in zip(drawn["embeddings"], drawn["hypernetworks"], strict=True)
        ]
        history = pfedla.run(**setting, blocks=BLOCKS, **drawn, retained=1, hypernetwork_rate=0.0)
        for models in history:
            for i in range(COUNT):
                kept = int(np.argmax(plain[i][:, i]))  # the first of equals
                assert list(np.flatnonzero(models["retained"][i])) == [kept]
                np.testing.assert_array_equal(models["alpha"][i, kept], np.eye(COUNT)[i])
                np.testing.assert_array_equal(models["alpha"][i, 1 - kept], plain[i][1 - kept])
                own = models["uploaded"][i][BLOCKS[kept]]
                for name in own:
                    np.testing.assert_array_equal(
                        models["personalized"][i][BLOCKS[kept]][name], own[name]
                    )
    ties = pfedla.retained_blocks(np.full((3, 2), 0.5), 1, 2)
    assert list(ties) == [True, True, False]


def test_heurpfedla_retained_block_does_not_move_its_output_layer(setting):
    drawn = hypernetworks(noise=0.3)
    common = {**setting, "initial": different_models(), "rounds": 1}
    (first,) = pfedla.run(**common, blocks=BLOCKS, **drawn, retained=1, hypernetwork_rate=0.1)
    for i in range(COUNT):
        before, after = drawn["hypernetworks"][i], first["hypernetwork"][i]
        alpha = pfedla.hypernetwork(drawn["embeddings"][i], before)
        kept = int(np.argmax(alpha[:, i]))
        outputs = zip(before["output"], after["output"], strict=True)
        moved = [np.abs(old["bias"] - new["bias"]).max() for old, new in outputs]
        assert moved[kept] == 0.0 and moved[1 - kept] > 1e-6


def test_pfedla_blocks_may_hold_several_layers(setting):
    drawn = hypernetworks(blocks=1, noise=0.3)
    history = pfedla.run(**setting, blocks=(("hidden", "head"),), **drawn)
    for models in history:
        mixing = models["alpha"][:, 0]
        np.testing.assert_allclose(
            stack(models["personalized"]), mixing @ stack(models["uploaded"]), rtol=1e-10
        )
    with pytest.raises(ValueError, match="blocks"):
        pfedla.run(**setting, blocks=("head",), **drawn)


def test_pfedla_initial_models_may_differ(setting):
    drawn, models = hypernetworks(noise=0.3), different_models()
    (after,) = pfedla.run(
        **{**setting, "initial": models, "rounds": 1, "cohorts": [[]]}, blocks=BLOCKS, **drawn
    )
    for i in range(COUNT):
        assert after["uploaded"][i] is models[i]
        alpha = pfedla.hypernetwork(drawn["embeddings"][i], drawn["hypernetworks"][i])
        assert_same(after["personalized"][i], pfedla.aggregate(alpha, models, BLOCKS))
