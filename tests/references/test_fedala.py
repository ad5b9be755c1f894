"""FedALA's reference: element-wise weights, when they are learnt, and by whom."""

from itertools import pairwise

import numpy as np
import pytest

from tests.references import fedala, fedavg, local, network
from tests.references.local_sgd import sgd
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

ALL = ("hidden", "head")


def windows(setting, size=2, percent=80, seed=21):
    """adaptation_batches[t][i]: a window of every client's samples, in batches."""
    rng = np.random.default_rng(seed)

    def one(samples):
        largest = len(samples) - max(1, int(percent / 100 * len(samples)))
        part = fedala.window(samples, percent, rng.integers(0, largest + 1))
        return [part[k : k + size] for k in range(0, len(part), size)]

    return [[one(c["samples"]) for c in setting["clients"]] for _ in range(setting["rounds"])]


@pytest.fixture
def federation(setting):
    return {**setting, "adaptation_batches": windows(setting)}


def plain(federation, **changes):
    return {k: v for k, v in federation.items() if k != "adaptation_batches"} | changes


def part_of(model, top):
    return {layer: model[layer] for layer in top}


def random_pair():
    rng = np.random.default_rng(4)
    return [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(2)]


# ------------------------------------------------------------------ the weights


@pytest.mark.parametrize("top", [("head",), ALL])
def test_a_step_of_the_weights_follows_central_differences(setting, top):
    x, y, (own, received) = setting["x"], setting["y"], random_pair()
    rng = np.random.default_rng(2)
    first = network.mapped(lambda leaf: rng.uniform(0.4, 0.6, leaf.shape), part_of(received, top))

    def loss(vector):
        weights = network.unflat(vector, first)
        mixed = fedala.between(part_of(own, top), part_of(received, top), weights)
        return network.loss_and_gradient({**received, **mixed}, x, y)[0]

    slope = differences(loss, flat(first))
    adapted, weights, passes = fedala.adapt(
        own, received, first, [np.arange(len(y))], x, y,
        rate=0.1, first=False, threshold=0.1, window_size=10, most=9,
    )  # fmt: skip
    np.testing.assert_allclose(flat(weights), flat(first) - 0.1 * slope, atol=1e-9)
    assert passes == 1 and np.abs(slope).max() > 1e-3
    assert network.loss_and_gradient(adapted, x, y)[0] < loss(flat(first))
    for layer in adapted:
        mixed = own[layer]["bias"] + (received[layer]["bias"] - own[layer]["bias"]) * (
            weights[layer]["bias"] if layer in top else 1.0
        )
        np.testing.assert_allclose(adapted[layer]["bias"], mixed, rtol=1e-13)


def test_weights_are_clipped():
    def model(*values):
        return {"head": {"bias": np.array(values, float)}}

    weights = fedala.weight_step(
        model(0.5, 0.5, 0.5, 1.0), model(1, -1, 2, 3), model(0, 0, 0, 7), model(1, 1, 0, 7), 0.3
    )
    np.testing.assert_allclose(weights["head"]["bias"], [0.2, 0.8, 0.5, 1.0])
    weights = fedala.weight_step(model(0.5, 0.5), model(9, -9), model(0, 0), model(1, 1), 1.0)
    np.testing.assert_array_equal(weights["head"]["bias"], [0.0, 1.0])


def test_when_losses_have_settled():
    assert not fedala.converged([1.0] * 10, 0.1, 10)  # more than ten are needed
    assert fedala.converged([9.0] + [1.0] * 10, 0.1, 10)
    assert not fedala.converged([1.0] * 10 + [9.0], 0.1, 10)
    assert not fedala.converged([1.0] * 11, 0.0, 10)  # below, not at


def test_windows():
    samples = np.arange(20, 30)
    np.testing.assert_array_equal(fedala.window(samples, 80, 0), np.arange(20, 28))
    np.testing.assert_array_equal(fedala.window(samples, 79, 3), np.arange(23, 30))
    np.testing.assert_array_equal(fedala.window(samples[:1], 80, 0), [20])  # not 0 samples
    for start in (-1, 3):
        with pytest.raises(ValueError, match="can't start"):
            fedala.window(samples, 80, start)


# ------------------------------------------------------------------ limits


@pytest.mark.parametrize("who", fedala.WHO)
@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
@pytest.mark.parametrize("top", [("head",), ALL])
def test_weights_of_one_are_fedavg(federation, cohorts, who, top):
    common = {**federation, "cohorts": cohorts}
    history = fedala.run(**common, weight_rate=0.0, who=who, top=top)
    expected = fedavg.run(**plain(common))
    received = federation["initial"]
    for models, averaged in zip(history, expected, strict=True):
        assert_same(models["global"], averaged["global"])
        for start in models["received"].values():
            assert_same(start, received)
        received = averaged["global"]
        if who == "everyone":
            for model in models["personalized"]:
                assert_same(model, received)


@pytest.mark.parametrize("who", fedala.WHO)
@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_weights_of_zero_on_all_layers_are_local_training(federation, cohorts, who):
    common = {**federation, "cohorts": cohorts}
    history = fedala.run(**common, first_weight=0.0, weight_rate=0.0, top=ALL, who=who)
    for models, expected in zip(history, local.run(**plain(common)), strict=True):
        for i, alone in enumerate(expected["personalized"]):
            assert_same(models["trained"][i], alone)
            if who == "everyone":
                assert_same(models["personalized"][i], alone)


@pytest.mark.parametrize("who", fedala.WHO)
def test_one_client_trains_alone(federation, who):
    """Its model is the average, so there is nothing to weigh."""
    common = plain(federation, clients=federation["clients"][:1], cohorts=[[0]] * ROUNDS)
    common["adaptation_batches"] = federation["adaptation_batches"]
    model = federation["initial"]
    for t, models in enumerate(fedala.run(**common, who=who)):
        model = sgd(model, federation["batches"][t][0], federation["x"], federation["y"], RATES[t])
        assert_same(models["trained"][0], model)
        assert models["passes"] == [0]


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("who", fedala.WHO)
def test_three_rounds_by_hand(federation, who):
    x, y, initial = federation["x"], federation["y"], federation["initial"]
    common = {**federation, "cohorts": [[0, 1, 3], [1, 2], [0, 1, 2, 3]]}
    options = {"weight_rate": 2.0, "most_passes": 13, "threshold": 0.01}
    history = fedala.run(**common, **options, who=who)
    held, server = [flat(initial)] * COUNT, flat(initial)
    begun = [False] * COUNT
    weights = [np.ones_like(flat(part_of(initial, ["head"])))] * COUNT

    def adapt(i, t):
        like = part_of(initial, ["head"])
        if np.array_equal(held[i], server):
            return held[i]
        theta, w = (
            flat(part_of(network.unflat(vector, initial), ["head"])) for vector in (held[i], server)
        )
        body = network.unflat(server, initial)["hidden"]
        losses = []
        while True:
            for batch in federation["adaptation_batches"][t][i]:
                head = network.unflat(theta + (w - theta) * weights[i], like)
                model = {"hidden": body, **head}
                loss, gradient = network.loss_and_gradient(model, x[batch], y[batch])
                step = flat({"head": gradient["head"]}) * (w - theta)
                weights[i] = np.clip(weights[i] - 2.0 * step, 0.0, 1.0)
            losses.append(loss)
            settled = len(losses) > 10 and np.std(losses[-10:]) < 0.01
            if begun[i] or settled or len(losses) == 13:
                break
        begun[i] = True
        assert history[t]["passes"][i] == len(losses)
        return flat({"hidden": body, **network.unflat(theta + (w - theta) * weights[i], like)})

    for t, after in enumerate(history):
        cohort = common["cohorts"][t]
        if who == "selected":
            for i in cohort:
                held[i] = adapt(i, t)
        for i in cohort:
            np.testing.assert_allclose(flat(after["received"][i]), held[i], rtol=1e-11)
            start = network.unflat(held[i], initial)
            held[i] = flat(sgd(start, federation["batches"][t][i], x, y, RATES[t]))
            np.testing.assert_allclose(flat(after["trained"][i]), held[i], rtol=1e-11)
        sizes = np.array([federation["sizes"][i] for i in cohort])
        server = sizes / sizes.sum() @ np.array([held[i] for i in cohort])
        np.testing.assert_allclose(flat(after["global"]), server, rtol=1e-11)
        if who == "everyone":
            for i in range(COUNT):
                held[i] = adapt(i, t)
                np.testing.assert_allclose(flat(after["personalized"][i]), held[i], rtol=1e-11)
        for i in range(COUNT):
            np.testing.assert_allclose(flat(after["weights"][i]), weights[i], rtol=1e-10)
    assert any(np.ptp(flat(own)) > 0.1 for own in history[-1]["weights"])


def test_the_first_adaptation_lasts_until_it_has_settled_and_later_ones_one_pass(federation):
    first, second, third = fedala.run(**federation)
    assert all(11 <= passes < 30 for passes in first["passes"])
    assert second["passes"] == third["passes"] == [1] * COUNT
    first, *_ = fedala.run(**federation, most_passes=4)
    assert first["passes"] == [4] * COUNT
    first, *_ = fedala.run(**federation, threshold=0.0)
    assert first["passes"] == [30] * COUNT


def test_nobody_adapts_before_the_first_training(federation):
    """All models are equal then, so the long first adaptation is not spent on it."""
    history = fedala.run(**federation, who="selected")
    assert history[0]["passes"] == [0] * COUNT
    assert all(passes >= 11 for passes in history[1]["passes"])
    (nobody, after, _) = fedala.run(**{**federation, "cohorts": [[], [0, 1, 2, 3], []]})
    assert nobody["passes"] == [0] * COUNT and nobody["global"] is federation["initial"]
    assert all(passes >= 11 for passes in after["passes"])


def test_all_clients_adapt_in_every_round_by_default(federation):
    history = fedala.run(**{**federation, "cohorts": PARTIAL})
    for t, (before, after) in enumerate(pairwise(history), 1):
        for i in range(COUNT):
            # The average of one client's model is that model: nothing is left to adapt.
            assert after["passes"][i] == (PARTIAL[t] != [i])
            # Lower layers are the server's, of absent clients too.
            np.testing.assert_array_equal(
                after["personalized"][i]["hidden"]["kernel"], after["global"]["hidden"]["kernel"]
            )
            assert after["personalized"][i] is not before["personalized"][i]
    for i in range(COUNT):
        kept = history[2]["trained"][i] is history[1]["trained"][i]
        assert kept == (i not in PARTIAL[2])


def test_absent_clients_keep_everything_where_the_selected_adapt(federation):
    history = fedala.run(**{**federation, "cohorts": PARTIAL}, who="selected")
    before = {name: [None] * COUNT for name in ("personalized", "trained", "weights")}
    for t, after in enumerate(history):
        for i in range(COUNT):
            if i in PARTIAL[t]:
                assert (after["passes"][i] > 0) == (t > 0)
                assert after["personalized"][i] is after["received"][i]
                continue
            assert after["passes"][i] == 0
            for name, values in before.items():
                assert t == 0 or after[name][i] is values[i]
        before = {name: after[name] for name in before}


def test_without_batches_the_weights_stay(federation):
    """A window smaller than a batch: the published code drops the batch and then fails."""
    batches = [[[] if i == 1 else own for i, own in enumerate(r)]
               for r in federation["adaptation_batches"]]  # fmt: skip
    after = fedala.run(**{**federation, "adaptation_batches": batches})[-1]
    np.testing.assert_array_equal(flat(after["weights"][1]), 1.0)
    assert_same(after["personalized"][1], after["global"])
    assert (flat(after["weights"][0]) < 1.0).any()


def test_only_everyone_or_the_selected_adapt(federation):
    with pytest.raises(ValueError, match="Unknown clients 'nobody'"):
        fedala.run(**federation, who="nobody")


def test_defaults_are_those_of_the_specification():
    assert defaults(fedala.run) == {
        "top": ("head",),
        "weight_rate": 1.0,
        "threshold": 0.1,
        "window_size": 10,
        "most_passes": 30,
        "who": "everyone",
        "first_weight": 1.0,
    }
