"""FedFomo's reference: weights, downloads, affinities, local training as its limit, by hand."""

from itertools import pairwise

import numpy as np
import pytest

from tests.references import fedfomo, local, network
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    flat,
    identical,
    longer,
    stack,
)


@pytest.fixture
def validating(setting):
    """Clients whose validation samples are some that the next one trains on, who so can help."""
    clients = [
        {**client, "validation": other["samples"][:3]}
        for client, other in zip(
            setting["clients"], [*setting["clients"][1:], setting["clients"][0]], strict=True
        )
    ]
    return {**setting, "clients": clients}


def loss(setting, model, i):
    at = setting["clients"][i]["validation"]
    return network.loss_and_gradient(model, setting["x"][at], setting["y"][at])[0]


# ------------------------------------------------------------------ weights, picks, affinities


def test_weights_of_a_worked_example():
    weights = fedfomo.first_order_weights(2.0, [1.0, 1.5, 3.0, 2.0], [2.0, 0.25, 1.0, 5.0])
    np.testing.assert_array_equal(weights, [0.5, 2.0, -1.0, 0.0])
    np.testing.assert_array_equal(fedfomo.positive_part(weights), [0.2, 0.8, 0.0, 0.0])
    np.testing.assert_array_equal(
        fedfomo.first_order_weights(2.0, [1.0, 1.0], [0.0, 4.0]), [0, 0.25]
    )
    np.testing.assert_array_equal(fedfomo.positive_part(np.array([-1.0, 0.0])), [0.0, 0.0])


def test_models_that_differ_by_rounding_weigh_nothing(validating):
    """Public code divides by a distance of 0, or by 1e-5 in its place."""
    start = validating["initial"]
    near = network.scale(1.0 + 1e-9, start)
    far = network.scale(0.9, start)
    client, x, y = validating["clients"][0], validating["x"], validating["y"]
    for fallback, kept in (("trained", [1.0, 0.0]), ("start", [0.0, 0.0])):
        mixed, share, signed = fedfomo.mix(start, [near, start], client, x, y, fallback=fallback)
        assert mixed is (near if fallback == "trained" else start)
        np.testing.assert_array_equal(share, kept)
        np.testing.assert_array_equal(signed, 0.0)
    _, _, signed = fedfomo.mix(start, [near, far], client, x, y)
    assert signed[0] == 0.0 != signed[1]


def test_picks_are_greedy_random_or_tied():
    affinity, priority = [0.1, 0.5, 0.5, -0.2, 0.0], [9, 7, 5, 1, 3]

    def pick(explores, ties=(0, 1, 2, 3, 4), candidates=(1, 2, 3, 4)):
        return fedfomo.pick(affinity, candidates, len(explores), explores, priority, ties)

    assert pick([False] * 3) == [1, 2, 4]
    assert pick([False] * 3, ties=(0, 2, 1, 3, 4)) == [2, 1, 4]
    assert pick([True] * 3) == [3, 4, 2]
    assert pick([False, True, False]) == [1, 3, 2]
    assert pick([True] * 9) == [3, 4, 2, 1]  # no more than there are
    assert pick([False] * 2, candidates=()) == []


def test_affinities_rise_by_signed_shares():
    weights = np.array([2.0, -0.5, -0.5])
    affinity = fedfomo.raised([0.1, 0.0, 0.0, 0.3], [0, 3, 1], weights)
    np.testing.assert_allclose(affinity, [2.1, -0.5, 0.0, -0.2], rtol=1e-14)
    affinity = fedfomo.raised([0.0, 0.0], [0, 1], np.array([-3.0, 1.0]))
    np.testing.assert_allclose(affinity, [-1.5, 0.5])  # signs are kept, the sum's is not
    raw = fedfomo.raised([0.1, 0.0, 0.0, 0.3], [0, 3, 1], weights, "raw")
    np.testing.assert_allclose(raw, [2.1, -0.5, 0.0, -0.2])
    np.testing.assert_array_equal(fedfomo.raised([0.1, 0.2], [0, 1], np.zeros(2)), [0.1, 0.2])
    close = fedfomo.raised([0.0, 0.0], [0, 1], np.array([1.0, -1.0]))
    np.testing.assert_allclose(close, [1e9, -1e9])  # finite where the sum is 0
    with pytest.raises(ValueError, match="Unknown rule"):
        fedfomo.raised([0.1], [0], np.ones(1), "softmax")


# ------------------------------------------------------------------ the rounds


def test_first_round_is_local_training(validating):
    """Nothing was uploaded, and a client's own model is where it starts: distance 0."""
    (models,) = fedfomo.run(**{**validating, "rounds": 1})
    (expected,) = local.run(**{**validating, "rounds": 1})
    assert models["personalized"] == [validating["initial"]] * COUNT
    np.testing.assert_array_equal(stack(models["trained"]), stack(expected["personalized"]))
    np.testing.assert_array_equal(models["weights"], np.eye(COUNT))
    np.testing.assert_array_equal(models["affinity"], 0.1 * np.eye(COUNT))


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_without_validation_samples_it_is_local_training(setting, cohorts):
    """All losses are equal: no weight is positive, and everybody keeps what it trained."""
    common = {**setting, "cohorts": cohorts}
    for models, expected in zip(fedfomo.run(**common), local.run(**common), strict=True):
        np.testing.assert_array_equal(stack(models["trained"]), stack(expected["personalized"]))
        np.testing.assert_array_equal(models["weights"], np.eye(COUNT))


def test_alone_it_is_local_training(validating):
    """Its own model is the only candidate: taken whole, or kept."""
    common = {**validating, "cohorts": [[3]] * ROUNDS}
    for models, expected in zip(fedfomo.run(**common), local.run(**common), strict=True):
        assert_same(models["trained"][3], expected["personalized"][3])


def test_identical_clients_train_locally(validating):
    same = identical(validating)
    history = fedfomo.run(**same, downloads=2)
    for models, expected in zip(history, local.run(**same), strict=True):
        for own, alone in zip(models["trained"], expected["personalized"], strict=True):
            assert_same(own, alone)
    rows = history[-1]["weights"]
    assert set(np.count_nonzero(rows, axis=1)) <= {1, 3}
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)


def test_falling_back_to_the_start_loses_what_was_trained(setting):
    """The published code's: without a positive weight every round begins at the first model."""
    history = fedfomo.run(**setting, fallback="start")
    for t, models in enumerate(history):
        assert models["personalized"] == [setting["initial"]] * COUNT
        for i in range(COUNT):
            batches = setting["batches"][t][i]
            again = sgd(setting["initial"], batches, setting["x"], setting["y"], RATES[t])
            assert_same(models["trained"][i], again)
    with pytest.raises(ValueError, match="Unknown fallback"):
        fedfomo.run(**setting, fallback="own")


@pytest.mark.parametrize("norm", fedfomo.NORMS)
def test_round_written_with_vectors(validating, norm):
    _, second, third = fedfomo.run(**validating, downloads=2, norm=norm)
    starts, uploads = stack(second["personalized"]), stack(second["trained"])
    affinity = second["affinity"]
    for i in range(COUNT):
        order = sorted((j for j in range(COUNT) if j != i), key=lambda j: (-affinity[i, j], j))
        assert third["downloaded"][i] == order[:2]
        who = [i, *order[:2]]
        begin = loss(validating, second["personalized"][i], i)
        gains = np.array([begin - loss(validating, second["trained"][j], i) for j in who])
        apart = uploads[who] - starts[i]
        length = np.abs(apart).sum(1) if norm == "l1" else np.sqrt((apart**2).sum(1))
        w = gains / length
        np.testing.assert_allclose([third["signed"][i][j] for j in who], w, rtol=1e-11)
        raised = affinity[i].copy()
        raised[who] += w / abs(w.sum())
        np.testing.assert_allclose(third["affinity"][i], raised, rtol=1e-10, atol=1e-12)
        w = np.maximum(w, 0)
        mixed = starts[i] + (w / w.sum()) @ apart if w.any() else uploads[i]
        np.testing.assert_allclose(flat(third["personalized"][i]), mixed, rtol=1e-11, atol=1e-13)
        model = network.unflat(mixed, validating["initial"])
        batches = validating["batches"][2][i]
        trained = sgd(model, batches, validating["x"], validating["y"], RATES[2])
        assert_same(third["trained"][i], trained)
    # Models are mixed before they are scored; public code scores the client's own last one.
    assert np.abs(stack(third["personalized"]) - uploads).max() > 1e-3


def test_weights_lie_on_the_simplex_and_mix_the_uploads(validating):
    rounds = 8
    history = fedfomo.run(**longer(validating, rounds), downloads=3)
    for before, after in pairwise(history):
        weights = after["weights"]
        assert weights.min() >= 0.0
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(
            stack(after["personalized"]), weights @ stack(before["trained"]), rtol=1e-9, atol=1e-12
        )
        for i, row in after["signed"].items():  # a model that is worse is left out
            for j, weight in row.items():
                assert (weights[i, j] > 0) == (weight > 0) or not any(v > 0 for v in row.values())
    assert any(min(row.values()) < 0 for after in history for row in after["signed"].values())


def test_candidates_are_the_last_uploads_and_always_its_own(validating):
    cohorts = [[0, 1, 2, 3], [1, 2], [], [0, 2, 3], [0]]
    common = {**longer(validating, 5), "cohorts": cohorts}
    history = fedfomo.run(**common, downloads=3)
    _, second, third, fourth, fifth = history
    assert [sorted(second["downloaded"][i]) for i in (1, 2)] == [[0, 2, 3], [0, 1, 3]]
    assert third["downloaded"] == {}
    for name in ("personalized", "trained"):  # nobody: nothing changes
        assert all(a is b for a, b in zip(third[name], second[name], strict=True))
    np.testing.assert_array_equal(third["affinity"], second["affinity"])
    np.testing.assert_array_equal(third["weights"], np.eye(COUNT))
    assert {i: sorted(js) for i, js in fourth["downloaded"].items()} == {
        0: [1, 2],
        2: [1],
        3: [1, 2],
    }
    assert set(fourth["signed"][0]) == {0, 1, 2}
    assert fourth["personalized"][1] is second["personalized"][1]  # absent
    assert fourth["trained"][1] is second["trained"][1]
    np.testing.assert_array_equal(fourth["affinity"][1], second["affinity"][1])
    np.testing.assert_array_equal(fourth["weights"][1], np.eye(COUNT)[1])
    assert sorted(fifth["downloaded"][0]) == [2, 3]


def test_draws_decide_what_is_downloaded(validating):
    chance = ([True], [0, 9, 5, 3], range(COUNT))
    history = fedfomo.run(**validating, downloads=1, draws=[[chance] * COUNT] * ROUNDS)
    assert history[1]["downloaded"] == {0: [3], 1: [0], 2: [0], 3: [0]}
    greedy = fedfomo.run(**validating, downloads=1)
    assert greedy[1]["downloaded"] == {0: [1], 1: [0], 2: [0], 3: [0]}


def test_nothing_to_download_is_local_training(validating):
    """Its own weight is all there is: positive or not, the own model is kept."""
    history = fedfomo.run(**validating, downloads=0)
    for models, expected in zip(history, local.run(**validating), strict=True):
        for own, alone in zip(models["trained"], expected["personalized"], strict=True):
            assert_same(own, alone)
