"""APPLE's reference: gradients, the penalty's schedule, local training as its limit, by hand."""

import numpy as np
import pytest

from tests.references import apple, local, network
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    SIZES,
    assert_same,
    differences,
    flat,
    longer,
    stack,
)

FIRST = np.array(SIZES) / sum(SIZES)


@pytest.fixture
def several(setting):
    """The setting with a core of its own for each client, and without momentum."""
    rng = np.random.default_rng(5)
    cores = [network.random_parameters(rng, 5, 6, 4) for _ in range(COUNT)]
    return {**setting, "initial": cores, "momentum": 0.0, "relation_momentum": 0.0}


# ------------------------------------------------------------------ the penalty's schedule


def test_penalty_falls_over_the_first_rounds():
    factor = [apple.penalty_factor(t, 40) for t in range(6)]
    np.testing.assert_allclose(factor, [1, 1e-3**0.25, 1e-3**0.5, 1e-3**0.75, 0, 0], rtol=1e-14)
    cosine = [apple.penalty_factor(t, 40, 0.1, "cosine") for t in range(6)]
    np.testing.assert_allclose(
        cosine, [1, 0.5 + np.sqrt(0.125), 0.5, 0.5 - np.sqrt(0.125), 0, 0], atol=1e-15
    )
    assert apple.penalty_factor(0, 9) == 0.0  # a tenth of 9 rounds is none
    assert apple.penalty_factor(2, 30) > 0.0 == apple.penalty_factor(3, 30)
    assert apple.penalty_factor(28, 100, 0.29) > 0.0 == apple.penalty_factor(29, 100, 0.29)
    with pytest.raises(ValueError, match="Unknown schedule"):
        apple.penalty_factor(0, 9, schedule="linear")


# ------------------------------------------------------------------ the gradients


def test_gradients_are_those_of_the_objective(several, setting):
    cores, i, penalty = several["initial"], 2, 0.7
    relations = np.array([0.4, -0.2, 0.9, 0.1])
    at = setting["clients"][i]["samples"]
    x, y = setting["x"][at], setting["y"][at]

    def objective(core, q):
        mixed = [core if j == i else other for j, other in enumerate(cores)]
        loss, _ = network.loss_and_gradient(network.combine(q, mixed), x, y)
        return loss + penalty / 2 * np.sum((q - FIRST) ** 2)

    slope, slopes = apple.gradients(i, cores, relations, FIRST, penalty, x, y)
    by_core = differences(
        lambda v: objective(network.unflat(v, cores[i]), relations), flat(cores[i])
    )
    np.testing.assert_allclose(flat(slope), by_core, rtol=1e-6, atol=1e-9)
    by_relation = differences(lambda q: objective(cores[i], q), relations)
    np.testing.assert_allclose(slopes, by_relation, rtol=1e-6, atol=1e-9)


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_own_core_alone_and_fixed_relations_are_local_training(setting, cohorts):
    common = {**setting, "cohorts": cohorts}
    history = apple.run(**common, relations=np.eye(COUNT), relation_rate=0.0, momentum=0.0)
    for models, expected in zip(history, local.run(**common), strict=True):
        for name in ("personalized", "cores"):
            np.testing.assert_allclose(
                stack(models[name]), stack(expected["personalized"]), rtol=1e-11, atol=1e-13
            )
        np.testing.assert_array_equal(models["relations"], np.eye(COUNT))


def test_momentum_begins_anew_in_each_round(setting):
    common = {**setting, "relations": np.eye(COUNT), "relation_rate": 0.0, "momentum": 0.8}
    theta = flat(setting["initial"])
    for t, models in enumerate(apple.run(**common)):
        speed = 0.0
        for batch in setting["batches"][t][3]:
            model = network.unflat(theta, setting["initial"])
            _, g = network.loss_and_gradient(model, setting["x"][batch], setting["y"][batch])
            speed = 0.8 * speed + flat(g)
            theta = theta - RATES[t] * speed
        np.testing.assert_allclose(flat(models["cores"][3]), theta, rtol=1e-11)


def test_fixed_even_relations_share_gradients(several):
    """One step on all samples: the mean of the cores moves by the mean gradient over N^2."""
    whole = [[[client["samples"]] for client in several["clients"]]]
    common = {**several, "rounds": 1, "batches": whole, "relation_rate": 0.0}
    (models,) = apple.run(**common, relations=np.full((COUNT, COUNT), 1 / COUNT))
    mean = network.combine([1 / COUNT] * COUNT, several["initial"])
    slopes = [
        flat(network.loss_and_gradient(mean, several["x"][own], several["y"][own])[1])
        for own in (client["samples"] for client in several["clients"])
    ]
    moved = flat(mean) - RATES[0] / COUNT**2 * np.sum(slopes, axis=0)
    np.testing.assert_allclose(stack(models["cores"]).mean(axis=0), moved, rtol=1e-12)


def test_round_written_with_vectors(several):
    """Both gradients at the same point, momentum on both, the penalty's pull, and who is scored."""
    common = {
        **several,
        "momentum": 0.9,
        "relation_momentum": 0.7,
        "cohorts": [[0, 1], [1, 3], [1]],
    }
    common |= {"relation_rate": 0.05, "mu": 0.4, "penalty_share": 0.9}
    first, second, _ = apple.run(**common)
    cores, like = stack(first["cores"]), several["initial"][0]
    penalty = 0.4 * 1e-3**0.5  # t = 1 of L = 2
    for i in (1, 3):
        own, q = cores.copy(), first["relations"][i]
        speed, drift = 0.0, 0.0
        for batch in several["batches"][1][i]:
            model = network.unflat(q @ own, like)
            _, g = network.loss_and_gradient(model, several["x"][batch], several["y"][batch])
            speed = 0.9 * speed + q[i] * flat(g)
            drift = 0.7 * drift + own @ flat(g) + penalty * (q - FIRST)
            own[i] = own[i] - RATES[1] * speed
            q = q - 0.05 * drift
        np.testing.assert_allclose(flat(second["cores"][i]), own[i], rtol=1e-11)
        np.testing.assert_allclose(second["relations"][i], q, rtol=1e-11)
        # The others' cores as they were received, though client 1 or 3 has a new one by now.
        np.testing.assert_allclose(flat(second["personalized"][i]), q @ own, rtol=1e-11, atol=1e-13)
    for i in (0, 2):
        assert second["personalized"][i] is first["personalized"][i]
        assert second["cores"][i] is first["cores"][i]
        np.testing.assert_array_equal(second["relations"][i], first["relations"][i])


def test_a_client_that_never_took_part_uses_the_first_relations(several):
    (models,) = apple.run(**{**several, "rounds": 1, "cohorts": [[]]})
    expected = FIRST @ stack(several["initial"])
    for model in models["personalized"]:
        np.testing.assert_allclose(flat(model), expected, rtol=1e-12)
    assert models["cores"] == several["initial"]
    np.testing.assert_array_equal(models["relations"], np.tile(FIRST, (COUNT, 1)))


def test_what_is_uploaded_is_the_core_and_relations_do_move(several):
    """Public code uploads the mixed model, multiplies eta_1 by N and keeps the relations."""
    whole = [[[client["samples"]] for client in several["clients"]]]
    (models,) = apple.run(**{**several, "rounds": 1, "batches": whole})
    apart = stack(models["cores"]) - stack(models["personalized"])
    assert np.abs(apart).max(axis=1).min() > 1e-3
    assert np.abs(models["relations"] - FIRST).max() > 1e-6
    at = several["clients"][1]["samples"]
    mixed = network.combine(FIRST, several["initial"])
    _, g = network.loss_and_gradient(mixed, several["x"][at], several["y"][at])
    step = flat(several["initial"][1]) - flat(models["cores"][1])
    np.testing.assert_allclose(step, RATES[0] * FIRST[1] * flat(g), rtol=1e-9, atol=1e-13)


def test_relations_may_be_negative_and_need_not_sum_to_one(several):
    history = apple.run(**longer(several, 9), relation_rate=0.5, mu=0.0)
    relations = history[-1]["relations"]
    assert relations.min() < 0.0
    assert np.abs(relations.sum(axis=1) - 1.0).max() > 1e-3


def test_a_strong_penalty_holds_the_relations(several):
    common = {**several, "relation_rate": 0.02, "penalty_share": 1.0}
    held = apple.run(**common, mu=40.0)[0]["relations"]
    free = apple.run(**common, mu=0.0)[0]["relations"]
    assert np.abs(held - FIRST).max() < 0.7 * np.abs(free - FIRST).max()


def test_cores_not_downloaded_stay_as_they_were_received(several):
    full = apple.run(**several)
    every = [[[j for j in range(COUNT) if j != i] for i in range(COUNT)]] * ROUNDS
    for models, expected in zip(apple.run(**several, downloads=every), full, strict=True):
        np.testing.assert_array_equal(stack(models["cores"]), stack(expected["cores"]))
    none = [[[]] * COUNT] * ROUNDS
    alone = apple.run(**several, downloads=none)
    changed = apple.run(**{**several, "cohorts": [[2]] * ROUNDS}, downloads=none)
    for models, expected in zip(changed, alone, strict=True):  # the others are not seen
        assert_same(models["personalized"][2], expected["personalized"][2])
        np.testing.assert_array_equal(models["relations"][2], expected["relations"][2])


def test_one_client_with_fixed_relations_is_sgd(setting):
    single = {**setting, "clients": setting["clients"][:1], "sizes": SIZES[:1]}
    single |= {"cohorts": [[0]] * ROUNDS}
    history = apple.run(**single, relation_rate=0.0, momentum=0.0)
    for models, expected in zip(history, local.run(**single), strict=True):
        assert_same(models["personalized"][0], expected["personalized"][0])
