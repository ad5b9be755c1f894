"""FedProto's reference: the prototype loss, the server's means, nearest prototypes."""

import numpy as np
import pytest

from tests.references import fedproto, local, network
from tests.references.averaging import WEIGHTINGS
from tests.references.small import (
    CLASSES,
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    defaults,
    differences,
    flat,
)

SOME = np.array([True, False, True, True])


@pytest.fixture
def prototypes():
    return np.random.default_rng(12).normal(size=(CLASSES, 6))


# ------------------------------------------------------------------ the loss


@pytest.mark.parametrize("over", fedproto.DISTANCES)
def test_slope_of_the_distance_equals_central_differences(prototypes, over):
    inner = np.random.default_rng(3).normal(size=(7, 6))
    y = np.array([0, 1, 2, 0, 1, 3, 0])
    _, slope = fedproto.prototype_loss(inner, y, prototypes, SOME, over)

    def at(vector):
        return fedproto.prototype_loss(vector.reshape(7, 6), y, prototypes, SOME, over)[0]

    numeric = differences(at, inner.ravel())
    np.testing.assert_allclose(slope.ravel(), numeric, rtol=1e-7, atol=1e-10)
    assert not slope[y == 1].any() and slope[y != 1].all()


def test_distances_by_hand():
    prototypes, exists = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([True, False])
    inner, y = np.array([[1.0, 3.0], [3.0, 1.0], [9.0, 9.0], [1.0, 1.0]]), np.array([0, 0, 1, 0])
    result = {
        over: fedproto.prototype_loss(inner, y, prototypes, exists, over)[0]
        for over in fedproto.DISTANCES
    }
    # |z - P|^2 is 4, 4 and 0, d = 2; the mean of the three is (5/3, 5/3).
    np.testing.assert_allclose(result["matched"], 8 / 2 / 3, rtol=1e-15)
    np.testing.assert_allclose(result["batch"], 8 / 2 / 4, rtol=1e-15)
    np.testing.assert_allclose(result["class_means"], 2 * (2 / 3) ** 2 / 2, rtol=1e-15)
    with pytest.raises(ValueError, match="Unknown distance 'l1'"):
        fedproto.prototype_loss(inner, y, prototypes, exists, "l1")


@pytest.mark.parametrize("over", fedproto.DISTANCES)
def test_gradient_of_the_local_loss_equals_central_differences(setting, prototypes, over):
    x, y, like = setting["x"], setting["y"], setting["initial"]
    loss, gradient = fedproto.loss_gradient(like, x, y, prototypes, SOME, 0.7, over)

    def at(vector):
        model = network.unflat(vector, like)
        return fedproto.loss_gradient(model, x, y, prototypes, SOME, 0.7, over)[0]

    np.testing.assert_allclose(flat(gradient), differences(at, flat(like)), rtol=1e-6, atol=1e-9)
    # The term is part of the gradient, as one published code forgot; it doesn't move the head.
    plain_loss, plain = network.loss_and_gradient(like, x, y)
    assert loss > plain_loss
    np.testing.assert_array_equal(gradient["head"]["kernel"], plain["head"]["kernel"])
    assert np.abs(gradient["hidden"]["kernel"] - plain["hidden"]["kernel"]).max() > 1e-3


def test_without_a_matching_prototype_the_loss_is_plain(setting, prototypes):
    x, y, like = setting["x"][:3], np.ones(3, int), setting["initial"]
    for over in fedproto.DISTANCES:
        loss, gradient = fedproto.loss_gradient(like, x, y, prototypes, SOME, 0.7, over)
        expected, plain = network.loss_and_gradient(like, x, y)
        assert loss == expected
        np.testing.assert_array_equal(flat(gradient), flat(plain))


# ------------------------------------------------------------------ the server


def sent_by(*holders):
    """What clients send, of one feature: each holder is {class: (mean, count)}."""
    uploads = []
    for holder in holders:
        means, counts = np.zeros((3, 1)), np.zeros(3, int)
        for c, (mean, count) in holder.items():
            means[c], counts[c] = mean, count
        uploads.append((means, counts))
    return uploads


def test_means_over_holders():
    before, exists = np.array([[5.0], [6.0], [7.0]]), np.array([True, True, False])
    sent = sent_by({0: (1.0, 1)}, {0: (4.0, 2), 2: (3.0, 9)})
    made, there = fedproto.aggregated(sent, before, exists)
    np.testing.assert_allclose(made, [[3.0], [6.0], [3.0]], rtol=1e-15)
    np.testing.assert_array_equal(there, True)  # nobody holds class 1: the old one stays
    made, there = fedproto.aggregated(sent, before, exists, "uniform", rebuilt=True)
    np.testing.assert_allclose(made[[0, 2]], [[2.5], [3.0]], rtol=1e-15)
    np.testing.assert_array_equal(there, [True, False, True])
    np.testing.assert_array_equal(before, [[5.0], [6.0], [7.0]])
    made, there = fedproto.aggregated([], before, exists, rebuilt=True)
    assert made is before and there is exists
    with pytest.raises(ValueError, match="Unknown weighting"):
        fedproto.aggregated(sent, before, exists, "loss")


def test_equal_holders_are_a_fixed_point():
    """A further division by the number of holders, as printed, would shrink them."""
    alike = [{0: (1.5, 4), 1: (2.0, 2)}] * 5
    for weighting in WEIGHTINGS:
        made, there = fedproto.aggregated(
            sent_by(*alike), np.zeros((3, 1)), np.zeros(3, bool), weighting
        )
        np.testing.assert_allclose(made, [[1.5], [2.0], [0.0]], rtol=1e-15)
        np.testing.assert_array_equal(there, [True, True, False])


def test_means_of_classes():
    inner, y = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]]), np.array([2, 2, 0])
    means, counts = fedproto.class_means(inner, y, 4)
    np.testing.assert_array_equal(means, [[5, 5], [0, 0], [2, 3], [0, 0]])
    np.testing.assert_array_equal(counts, [1, 0, 2, 0])


# ------------------------------------------------------------------ scores


def test_nearest_prototypes_are_the_largest_logits_of_a_head(setting):
    model, x = setting["initial"], setting["x"]
    inner = network.features(model, x)
    prototypes, _ = fedproto.class_means(inner, setting["y"], CLASSES)
    for eligible in (np.ones(CLASSES, bool), SOME, np.eye(CLASSES, dtype=bool)[2]):
        nearest = [
            min(np.flatnonzero(eligible), key=lambda c: np.sum((z - prototypes[c]) ** 2))
            for z in inner
        ]
        result = fedproto.nearest_prototype(model, x, prototypes, eligible)
        np.testing.assert_array_equal(result, nearest)
        ranked = fedproto.with_prototype_head(model, prototypes, eligible)
        np.testing.assert_array_equal(network.predict(ranked, x), nearest)
        assert set(nearest) == set(np.flatnonzero(eligible))
        assert ranked["hidden"] is model["hidden"]


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_without_the_term_it_is_local_training(setting, cohorts):
    common = {**setting, "cohorts": cohorts}
    for models, expected in zip(
        fedproto.run(**common, weight=0.0), local.run(**common), strict=True
    ):
        for model, alone in zip(models["personalized"], expected["personalized"], strict=True):
            assert_same(model, alone)


def test_the_first_round_is_local_training_and_the_second_is_not(setting):
    after, alone = fedproto.run(**setting), local.run(**setting)
    assert_same(after[0]["personalized"][1], alone[0]["personalized"][1])
    moved = flat(after[1]["personalized"][1]) - flat(alone[1]["personalized"][1])
    assert np.abs(moved).max() > 1e-4


@pytest.mark.parametrize("over", fedproto.DISTANCES)
def test_two_rounds_by_hand(setting, over):
    x, y, like = setting["x"], setting["y"], setting["initial"]
    common = {**setting, "rounds": 2, "cohorts": [[0, 2, 3], [0, 1]]}
    history = fedproto.run(**common, weight=0.8, over=over)
    held, made, exists = {}, np.zeros((CLASSES, 6)), np.zeros(CLASSES, bool)
    for t, after in enumerate(history):
        sums, counts = np.zeros((CLASSES, 6)), np.zeros(CLASSES)
        for i in common["cohorts"][t]:
            theta = held.get(i, flat(like))
            for batch in setting["batches"][t][i]:
                model = network.unflat(theta, like)
                _, gradient = fedproto.loss_gradient(
                    model, x[batch], y[batch], made, exists, 0.8, over
                )
                theta = theta - RATES[t] * flat(gradient)
            held[i] = theta
            np.testing.assert_allclose(flat(after["personalized"][i]), theta, rtol=1e-12)
            for k in setting["clients"][i]["samples"]:
                inner = network.features(network.unflat(theta, like), x[[k]])[0]
                sums[y[k]] += inner
                counts[y[k]] += 1
        # The mean over all samples of a class is that of the clients' means, by their counts.
        present = counts > 0
        made = np.where(present[:, None], sums / np.maximum(counts, 1)[:, None], made)
        exists = exists | present
        np.testing.assert_allclose(after["prototypes"], made, rtol=1e-12)
        np.testing.assert_array_equal(after["exists"], exists)
    assert history[1]["personalized"][2] is history[0]["personalized"][2]


def test_a_client_without_a_class_sends_no_prototype_of_it(setting):
    (after,) = fedproto.run(**{**setting, "rounds": 1})
    for i, client in enumerate(setting["clients"]):
        held = np.isin(np.arange(CLASSES), setting["y"][client["samples"]])
        np.testing.assert_array_equal(after["classes"][i], held)
        means, counts = after["sent"][i]
        np.testing.assert_array_equal(counts > 0, held)
        assert counts.sum() == len(client["samples"]) and not means[~held].any()
    assert not after["classes"].all()


def test_a_class_loses_its_prototype_only_if_they_are_rebuilt(setting):
    y = np.repeat(np.arange(COUNT), [len(c["samples"]) for c in setting["clients"]])
    common = {**setting, "y": y, "cohorts": [[0, 1], [2], []]}
    kept, rebuilt = (fedproto.run(**common, rebuilt=choice) for choice in (False, True))
    for history, wanted in ((kept, [0, 1, 2]), (rebuilt, [2])):
        for after in history[1:]:  # nobody in the last round: as it was
            assert np.flatnonzero(after["exists"]).tolist() == wanted
    np.testing.assert_array_equal(kept[2]["prototypes"][0], kept[0]["prototypes"][0])


def test_features_collected_in_the_last_epoch(setting):
    """Each sample is seen by the model before its step; the earlier epoch doesn't count."""
    twice = [[own + own[::-1] for own in of_round] for of_round in setting["batches"]]
    common = {**setting, "rounds": 1, "cohorts": [[3]], "batches": twice}
    lengths = [len(own) for own in setting["batches"][0]]
    (after,) = fedproto.run(**common, moment="last_epoch", last_epoch_steps=lengths)
    (later,) = fedproto.run(**common)
    assert_same(after["personalized"][3], later["personalized"][3])
    x, y, like = setting["x"], setting["y"], setting["initial"]
    theta, sums = flat(like), np.zeros((CLASSES, 6))
    for k, batch in enumerate(twice[0][3]):
        model = network.unflat(theta, like)
        if k >= lengths[3]:
            for c, inner in zip(y[batch], network.features(model, x[batch]), strict=True):
                sums[c] += inner
        theta = theta - RATES[0] * flat(network.loss_and_gradient(model, x[batch], y[batch])[1])
    means, counts = after["sent"][3]
    np.testing.assert_allclose(means * counts[:, None], sums, rtol=1e-12)
    np.testing.assert_array_equal(counts, later["sent"][3][1])
    assert np.abs(means - later["sent"][3][0]).max() > 1e-3
    with pytest.raises(ValueError, match="Unknown moment"):
        fedproto.run(**common, moment="before")


def test_one_client_and_one_sample(setting):
    own = setting["clients"][1]["samples"][:1]
    clients = [{"samples": own}] * COUNT
    batches = [[[own]] * COUNT] * ROUNDS
    history = fedproto.run(
        **{**setting, "cohorts": [[1]] * ROUNDS, "clients": clients, "batches": batches}
    )
    label = setting["y"][own[0]]
    for after in history:
        assert np.flatnonzero(after["exists"]).tolist() == [label]
        inner = network.features(after["personalized"][1], setting["x"][own])[0]
        np.testing.assert_allclose(after["prototypes"][label], inner, rtol=1e-13)
    idle = fedproto.run(**{**setting, "rounds": 1, "batches": [[[]] * COUNT]})[0]
    assert all(model is setting["initial"] for model in idle["personalized"])
    assert idle["exists"].all()  # a client without steps still sends its features' means


def test_defaults_are_those_of_the_specification():
    assert defaults(fedproto.run) == {
        "weight": 1.0,
        "over": "matched",
        "moment": "after",
        "last_epoch_steps": None,
        "weighting": "size",
        "rebuilt": False,
        "sizes": None,
    }
