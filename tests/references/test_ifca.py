"""IFCA's reference: choices, FedAvg as its limit, a round by hand, first models."""

import numpy as np
import pytest

from tests.references import fedavg, ifca, network
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    SIZES,
    assert_same,
    flat,
    identical,
    stack,
)


def drawn(count, seed=4):
    rng = np.random.default_rng(seed)
    return [network.random_parameters(rng, 5, 6, 4) for _ in range(count)]


@pytest.fixture
def several(setting):
    """The setting with three first models."""
    return {**setting, "initial": drawn(3)}


def loss(setting, model, at):
    return network.loss_and_gradient(model, setting["x"][at], setting["y"][at])[0]


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_one_model_is_fedavg(setting, cohorts):
    common = {**setting, "cohorts": cohorts}
    history = ifca.run(**{**common, "initial": [setting["initial"]]})
    for models, expected in zip(history, fedavg.run(**common), strict=True):
        for model in models["personalized"]:
            assert_same(model, expected["global"])


def test_round_by_hand(several):
    """Choices by the loss over all training samples; a model that nobody takes stays."""
    first, second = ifca.run(**{**several, "rounds": 2, "cohorts": [[0, 1, 2, 3], [0, 2, 3]]})
    before = first["models"]
    samples = [client["samples"] for client in several["clients"]]
    losses = np.array([[loss(several, model, at) for model in before] for at in samples])
    chosen = losses.argmin(axis=1)
    assert second["clusters"] == {i: chosen[i] for i in (0, 2, 3)}
    assert first["choices"] == list(chosen)  # those with which the new models are scored
    for k in range(3):
        takers = [i for i in (0, 2, 3) if chosen[i] == k]
        if not takers:
            assert second["models"][k] is before[k]
            continue
        trained = [
            flat(sgd(before[k], several["batches"][1][i], several["x"], several["y"], RATES[1]))
            for i in takers
        ]
        mean = np.average(trained, axis=0, weights=[SIZES[i] for i in takers])
        np.testing.assert_allclose(flat(second["models"][k]), mean, rtol=1e-12, atol=1e-15)
    for i, k in enumerate(second["choices"]):
        assert second["personalized"][i] is second["models"][k]


def test_two_kinds_of_clients_get_a_model_each(setting):
    """From the same model for all, one round of warm-up by kinds is enough to part them."""
    y = setting["y"].copy()
    for i in (1, 3):
        own = setting["clients"][i]["samples"]
        y[own] = (y[own] + 2) % 4
    common = {**setting, "y": y, "initial": drawn(2), "groups": [0, 1, 0, 1], "warmup": 1}
    history = ifca.run(**common)
    assert history[0]["clusters"] == {0: 0, 1: 1, 2: 0, 3: 1}
    for models in history:
        assert models["choices"] == [0, 1, 0, 1]


def test_warmup_forces_groups_and_then_ends(several):
    history = ifca.run(**several, groups=[2, 2, 0, 2], warmup=2)
    assert [h["clusters"] for h in history[:2]] == [dict(enumerate([2, 2, 0, 2]))] * 2
    assert list(history[2]["clusters"].values()) == history[1]["choices"]
    for models in history[:2]:
        assert models["models"][1] is several["initial"][1]


def test_relabelling_the_models_relabels_the_result(several):
    order = [2, 0, 1]
    moved = {**several, "initial": [several["initial"][k] for k in order]}
    for before, after in zip(ifca.run(**several), ifca.run(**moved), strict=True):
        assert [order[k] for k in after["choices"]] == before["choices"]
        for new, old in enumerate(order):
            np.testing.assert_array_equal(flat(after["models"][new]), flat(before["models"][old]))


def test_ties_go_to_the_lower_number_and_identical_models_stay_apart(setting):
    """From one and the same first model everybody takes model 0: different draws are needed."""
    history = ifca.run(**{**setting, "initial": [setting["initial"]] * 3})
    assert history[0]["clusters"] == dict.fromkeys(range(COUNT), 0)
    assert history[0]["models"][1] is history[0]["models"][2] is setting["initial"]


@pytest.mark.parametrize("averaging", ifca.AVERAGING)
def test_absent_clients_choose_but_change_nothing(several, averaging):
    models = several["initial"]
    for t, after in enumerate(ifca.run(**{**several, "cohorts": PARTIAL}, averaging=averaging)):
        assert set(after["clusters"]) == set(PARTIAL[t])
        taken = set(after["clusters"].values())
        for k in range(3):
            assert (after["models"][k] is models[k]) == (k not in taken)
        assert len(after["choices"]) == COUNT
        models = after["models"]
    nobody = ifca.run(**{**several, "rounds": 1, "cohorts": [[]]}, averaging=averaging)[0]
    assert nobody["models"] == several["initial"]
    assert nobody["clusters"] == {}


def test_weighting_is_by_size_or_uniform(several):
    forced = {"groups": [0, 0, 0, 0], "warmup": ROUNDS}
    uniform = ifca.run(**several, **forced, weighting="uniform")
    single = {**several, "initial": several["initial"][0]}
    even = fedavg.run(**{**single, "sizes": [1] * COUNT})
    sized = fedavg.run(**single)
    by_size = ifca.run(**several, **forced)
    for t in range(ROUNDS):
        assert_same(uniform[t]["models"][0], even[t]["global"])
        assert_same(by_size[t]["models"][0], sized[t]["global"])
    with pytest.raises(ValueError, match="Unknown weighting"):
        ifca.run(**several, weighting="loss")


def test_averaging_gradients_takes_one_step_on_the_mean_over_all_participants(several):
    forced = {"groups": [0, 1, 0, 1], "warmup": ROUNDS}
    history = ifca.run(**several, **forced, averaging="gradients")
    models = several["initial"]
    for t, after in enumerate(history):
        for k, takers in ((0, (0, 2)), (1, (1, 3))):
            slopes = []
            for i in takers:
                at = several["clients"][i]["samples"]
                _, g = network.loss_and_gradient(models[k], several["x"][at], several["y"][at])
                slopes.append(flat(g))
            moved = flat(models[k]) - RATES[t] * np.sum(slopes, axis=0) / COUNT
            np.testing.assert_allclose(flat(after["models"][k]), moved, rtol=1e-11, atol=1e-14)
        models = after["models"]
    whole = [[[client["samples"]] for client in several["clients"]]] * ROUNDS
    single = {**several, "initial": several["initial"][:1], "batches": whole}
    by_models = ifca.run(**single, weighting="uniform")
    by_gradients = ifca.run(**single, averaging="gradients")
    for one, other in zip(by_models, by_gradients, strict=True):
        assert_same(one["models"][0], other["models"][0])
    with pytest.raises(ValueError, match="Unknown averaging"):
        ifca.run(**several, averaging="losses")


def test_scores_may_choose_by_test_samples(several):
    clients = [
        {**client, "test": several["clients"][(i + 1) % COUNT]["samples"]}
        for i, client in enumerate(several["clients"])
    ]
    common = {**several, "clients": clients}
    by_train, by_test = ifca.run(**common), ifca.run(**common, scored_by="test")
    for one, other in zip(by_train, by_test, strict=True):
        assert one["clusters"] == other["clusters"]
        np.testing.assert_array_equal(stack(one["models"]), stack(other["models"]))
        losses = [[loss(several, m, c["test"]) for m in one["models"]] for c in clients]
        assert other["choices"] == list(np.argmin(losses, axis=1))
    assert any(a["choices"] != b["choices"] for a, b in zip(by_train, by_test, strict=True))
    assert ifca.choose(several["initial"], np.array([], int), several["x"], several["y"]) == 0


def test_balanced_first_models(several):
    clients, x, y = several["clients"], several["x"], several["y"]

    def least(models):
        chosen = [ifca.choose(models, client["samples"], x, y) for client in clients]
        return min(chosen.count(k) for k in range(len(models))) / COUNT

    draws = [drawn(2, seed) for seed in range(12)]
    shares = [least(models) for models in draws]
    assert 0.0 in shares and 0.5 in shares  # .25 of four clients would not do
    assert ifca.balanced(draws, clients, x, y) is draws[shares.index(0.5)]
    assert ifca.balanced(draws, clients, x, y, share=0.0) is draws[0]
    worse = [models for models, share in zip(draws, shares, strict=True) if share < 0.35]
    most = max(least(models) for models in worse)
    best = [models for models in worse if least(models) == most]
    assert len(best) > 1
    assert ifca.balanced(worse, clients, x, y) is best[0]
    four = [drawn(4, seed) for seed in range(3)]  # a tenth of four clients is one of them
    assert ifca.balanced(four, clients, x, y, share=0.1) is ifca.balanced(four, clients, x, y)


def test_identical_clients_share_one_model(several):
    for models in ifca.run(**identical(several)):
        assert len(set(models["choices"])) == 1
