"""LGA's and PLGA's reference: the predictor's limits, the normalised cosine, rounds by hand."""

import numpy as np
import pytest

from tests.references import fedavg, fedavg_async, lga, network
from tests.references.local_sgd import sgd
from tests.references.small import COUNT, PARTIAL, SIZES, assert_same, flat, longer, stack

# Client 3 is late by two rounds ("code": 0 starts, 2 arrives, 3 both, 4 starts ...), client 1 by
# one ("paper": starts in even rounds, arrives in odd ones).
ALL_ROUNDS = 7
STARTS = {3: [0, 3, 4], 1: [0, 2, 4, 6]}
ARRIVALS = {3: [2, 3, 6], 1: [1, 3, 5]}
LEAVES = [("hidden", "kernel"), ("hidden", "bias"), ("head", "kernel"), ("head", "bias")]


@pytest.fixture
def late(setting):
    """Seven rounds with clients 1 and 3 late."""
    common = longer(setting, ALL_ROUNDS)
    common.pop("cohorts")
    for key, rounds in (("starts", STARTS), ("arrivals", ARRIVALS)):
        common[key] = [
            [i for i in range(COUNT) if i not in rounds or t in rounds[i]]
            for t in range(ALL_ROUNDS)
        ]
    return common


@pytest.fixture
def models():
    """v, w0, w1, w: any four models."""
    rng = np.random.default_rng(7)
    names = ("trained", "start", "after", "server")
    return {name: network.random_parameters(rng, 5, 6, 4) for name in names}


def normalised_by_hand(s):
    return np.exp(s) / (np.e + np.exp(s))


# ------------------------------------------------------------------ the similarity


def test_normalised_similarity_lies_between_its_extremes():
    values = {"head": {"bias": np.array([-1.0, 0.0, 1.0])}}
    result = lga.normalised(values)["head"]["bias"]
    np.testing.assert_allclose(result, [0.1192, 0.2689, 0.5], atol=5e-5)


@pytest.mark.parametrize("stage", lga.STAGES)
def test_similarity_by_stage(models, stage):
    a = network.subtract(models["after"], models["start"])
    b = network.subtract(models["trained"], models["start"])
    values = lga.similarity(a, b, stage)
    groups = {
        "tensor": [[leaf] for leaf in LEAVES],
        "block": [LEAVES[:2], LEAVES[2:]],
        "stage": [LEAVES[:2], LEAVES[2:]],
        "model": [LEAVES],
    }[stage]
    seen = set()
    for group in groups:
        first, second = (
            np.concatenate([model[layer][name].ravel() for layer, name in group])
            for model in (a, b)
        )
        expected = first @ second / np.sqrt((first @ first) * (second @ second))
        for layer, name in group:
            np.testing.assert_allclose(values[layer][name], expected, rtol=1e-12)
        seen.add(float(values[group[0][0]][group[0][1]]))
    assert len(seen) == len(groups)


def test_nothing_moved_is_similarity_zero(models):
    zero = network.zeros_like(models["start"])
    for pair in ((zero, models["start"]), (models["start"], zero), (zero, zero)):
        np.testing.assert_array_equal(flat(lga.similarity(*pair)), 0.0)
    with pytest.raises(ValueError, match="Unknown stage"):
        lga.similarity(zero, zero, "layer")


# ------------------------------------------------------------------ the predictor


def test_a_server_that_stood_still_adds_the_clients_move(models):
    models["after"] = models["server"]
    move = network.subtract(models["trained"], models["start"])
    assert_same(lga.predicted(**models), network.add(models["server"], move))
    assert_same(lga.predicted(**models, equation=10), models["trained"])


def test_a_client_that_did_not_move_is_the_base(models):
    models["trained"] = models["start"]
    assert_same(lga.predicted(**models), models["server"])
    assert_same(lga.predicted(**models, equation=10), models["start"])


@pytest.mark.parametrize("raw", [False, True])
def test_predictor_written_out(models, raw):
    for equation, base in ((11, "server"), (10, "start")):
        result = lga.predicted(**models, equation=equation, raw_cosine=raw)
        for layer, name in LEAVES:
            v, w0, w1, w = (model[layer][name] for model in models.values())
            a, b = (w1 - w0).ravel(), (v - w0).ravel()
            s = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            factor = s if raw else normalised_by_hand(s)
            expected = models[base][layer][name] + factor * (v - w0) ** 2 * (w - w1) + v - w0
            np.testing.assert_allclose(result[layer][name], expected, rtol=1e-12)
    with pytest.raises(ValueError, match="Unknown equation"):
        lga.predicted(**models, equation=12)


def test_the_personal_model_lies_between_prediction_and_server(models):
    weights = lga.normalised(lga.similarity(models["after"], models["trained"]))
    result = lga.personal(models["trained"], models["start"], models["server"], weights)
    for layer, name in LEAVES:
        s = weights[layer][name]
        expected = (1 - s) * models["trained"][layer][name] + s * models["server"][layer][name]
        np.testing.assert_allclose(result[layer][name], expected, rtol=1e-12, atol=1e-15)


# ------------------------------------------------------------------ the rounds


def test_without_late_clients_the_server_is_fedavgs(setting):
    common = {key: setting[key] for key in setting if key != "cohorts"}
    plain = fedavg.run(**setting | {"cohorts": PARTIAL})
    history = lga.run(**common, starts=PARTIAL, arrivals=PARTIAL)
    before, held = setting["initial"], [setting["initial"]] * COUNT
    for t, models in enumerate(history):
        np.testing.assert_array_equal(flat(models["global"]), flat(plain[t]["global"]))
        assert models["predicted"] == {}
        for i in range(COUNT):
            if i not in PARTIAL[t]:
                assert models["personal"][i] is held[i]
                continue
            for layer, name in LEAVES:
                w0, v = before[layer][name], models["trained"][i][layer][name]
                w = models["global"][layer][name]
                s = np.vdot(w - w0, v - w0) / np.linalg.norm(w - w0) / np.linalg.norm(v - w0)
                s = normalised_by_hand(s)
                expected = w0 + (1 - s) * (v - w0) + s * (w - w0)
                result = models["personal"][i][layer][name]
                np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-14)
        before, held = models["global"], models["personal"]


def test_late_rounds_written_out(late):
    history = lga.run(**late)
    servers = [late["initial"], *(models["global"] for models in history)]

    def trained(i, t):
        batches, rate = late["batches"][t][i], late["learning_rate"][t]
        return sgd(servers[t], batches, late["x"], late["y"], rate)

    predictions = 0
    for t, models in enumerate(history):
        uploads = {}
        for i in late["arrivals"][t]:
            begun = max(s for s in STARTS.get(i, range(ALL_ROUNDS)) if s <= t)
            v = trained(i, begun)
            if begun == t:
                uploads[i] = v
                continue
            predictions += 1
            w0, w1, w = servers[begun], servers[begun + 1], servers[t]
            uploads[i] = lga.predicted(v, w0, w1, w)
            assert_same(models["predicted"][i], uploads[i])
            assert_same(models["start"][i], w0)
            assert_same(models["after"][i], w1)
            factor = lga.normalised(
                lga.similarity(network.subtract(w1, w0), network.subtract(v, w0))
            )
            assert_same(models["personal"][i], lga.personal(uploads[i], w0, w, factor))
        mean = np.average(
            stack(list(uploads.values())), axis=0, weights=[SIZES[i] for i in uploads]
        )
        np.testing.assert_allclose(flat(models["global"]), mean, rtol=1e-11, atol=1e-13)
        for i in late["starts"][t]:
            assert_same(models["trained"][i], trained(i, t))
        for i, guess in models["predicted"].items():  # from now on the client's own model
            assert models["trained"][i] is guess
        assert models["arrived"] == late["arrivals"][t]
    assert predictions == 5


def test_a_delay_of_one_adds_the_clients_move_to_the_server(late):
    history = lga.run(**late)
    servers = [late["initial"], *(models["global"] for models in history)]
    for t in ARRIVALS[1]:
        move = network.subtract(history[t - 1]["trained"][1], servers[t - 1])
        assert_same(history[t]["predicted"][1], network.add(servers[t], move))


def test_stages_are_the_body_and_the_head(models):
    deep = {
        name: {"first": model["hidden"], "second": model["hidden"], "head": model["head"]}
        for name, model in models.items()
    }
    moves = [network.subtract(deep[name], deep["start"]) for name in ("after", "trained")]
    body = {name: lga.similarity(*moves, stage=name)["first"]["bias"] for name in lga.STAGES}
    hidden = [(layer, leaf) for layer in ("first", "second") for leaf in ("kernel", "bias")]
    a, b = (np.concatenate([move[i][j].ravel() for i, j in hidden]) for move in moves)
    np.testing.assert_allclose(body["stage"], a @ b / np.linalg.norm(a) / np.linalg.norm(b), 1e-12)
    assert len({float(body[name]) for name in ("tensor", "stage", "model")}) == 3


def test_whoever_waits_in_the_last_round_sends(late):
    """Five rounds: client 3 began in round 4, so it has nothing to send; six: it has waited."""
    for rounds, flushed in ((5, []), (6, [3])):
        ended = {**late, "rounds": rounds}
        plain, history = lga.run(**ended), lga.run(**ended, flush=True)
        for before, models in zip(plain[:-1], history[:-1], strict=True):
            np.testing.assert_array_equal(flat(before["global"]), flat(models["global"]))
        before, models = plain[-1], history[-1]
        extra = sorted(set(models["arrived"]) - set(before["arrived"]))
        assert extra == flushed and set(models["predicted"]) == {*before["predicted"], *extra}
        for i in extra:
            v, w0, w = before["trained"][i], models["start"][i], plain[-2]["global"]
            moved = network.add(w, network.subtract(v, w0))  # one round late: w1 is w
            assert_same(models["predicted"][i], moved)
            uploads = [models["trained"][k] for k in models["arrived"]]
            mean = np.average(stack(uploads), axis=0, weights=[SIZES[k] for k in models["arrived"]])
            np.testing.assert_allclose(flat(models["global"]), mean, rtol=1e-11, atol=1e-13)
            assert models["personal"][i] is not before["personal"][i]


def test_personal_models_wait_for_an_arrival(late):
    history = lga.run(**late)
    held = [late["initial"]] * COUNT
    for t, models in enumerate(history):
        for i in range(COUNT):
            assert (models["personal"][i] is held[i]) == (i not in late["arrivals"][t])
        held = models["personal"]


@pytest.mark.parametrize("options", [{"equation": 10}, {"raw_cosine": True}, {"stage": "model"}])
def test_options_change_the_course(late, options):
    plain, other = lga.run(**late), lga.run(**late, **options)
    np.testing.assert_array_equal(flat(other[0]["global"]), flat(plain[0]["global"]))
    assert np.abs(flat(other[-1]["global"]) - flat(plain[-1]["global"])).max() > 1e-6
    stale = fedavg_async.run(**late)
    assert np.abs(flat(stale[-1]["global"]) - flat(plain[-1]["global"])).max() > 1e-4


def test_a_round_without_arrivals_keeps_the_server(late):
    empty = {**late, "rounds": 1, "arrivals": [[]]}
    (models,) = lga.run(**empty)
    assert models["global"] is late["initial"]
    assert all(model is late["initial"] for model in models["personal"])
