"""SFL's reference: graphs, the norms' gradients, FedAvg as its limit, a round by hand."""

import numpy as np
import pytest

from tests.references import fedavg, network, sfl, sfl_graph
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    differences,
    flat,
    identical,
    stack,
)

EVEN = np.full((COUNT, COUNT), 1 / COUNT)
FREE = {"graph_weight": 0.0, "global_weight": 0.0}


def generator(seed=8, count=COUNT, width=3):
    rng = np.random.default_rng(seed)
    return {
        "embedding": tuple(rng.normal(size=(2, count, width))),
        "kernel": tuple(rng.uniform(-0.5, 0.5, size=(2, width, width))),
        "bias": tuple(rng.uniform(-0.5, 0.5, size=(2, width))),
    }


# ------------------------------------------------------------------ graphs


def test_label_graph_joins_clients_that_share_a_label():
    y = np.array([0, 1, 1, 2, 3, 3])
    clients = [{"samples": at} for at in ([0, 1], [2, 3], [4], [5, 3], [])]
    expected = [
        [1 / 2, 1 / 2, 0, 0, 0],
        [1 / 3, 1 / 3, 0, 1 / 3, 0],
        [0, 0, 1 / 2, 1 / 2, 0],
        [0, 1 / 3, 1 / 3, 1 / 3, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(sfl_graph.label_graph(clients, y), expected, rtol=1e-15)


def test_neighbours_are_near_by_angle_oneself_first():
    def at(x, y):
        return {"head": {"kernel": np.array([[x, y]]), "bias": np.zeros(1)}}

    models = [at(2, 1), at(9, 1), at(1, 8), at(1, 1)]  # the last one stands where the readout is
    graph = sfl_graph.neighbour_graph(models, at(1, 1), 2)
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    np.testing.assert_array_equal(graph, np.array(expected) / 2)
    np.testing.assert_array_equal(sfl_graph.neighbour_graph(models, at(1, 1), 1), np.eye(4))


def test_the_learned_graph_s_gradient_is_that_of_its_loss():
    start = generator()
    target, _ = sfl_graph.unit_rows(np.random.default_rng(1).random((COUNT, COUNT)))
    slopes = sfl_graph.fit_gradient(start, target)
    for name, pair in start.items():
        for k, value in enumerate(pair):

            def loss(vector, name=name, k=k, shape=value.shape):
                changed = list(start[name])
                changed[k] = vector.reshape(shape)
                return sfl_graph.fit_loss({**start, name: tuple(changed)}, target)

            expected = differences(loss, np.ravel(value))
            np.testing.assert_allclose(np.ravel(slopes[name][k]), expected, rtol=1e-5, atol=1e-9)


def test_the_learned_graph_keeps_its_largest_entries(setting):
    models = [
        network.random_parameters(np.random.default_rng(seed), 5, 6, 4) for seed in range(COUNT)
    ]
    whole = sfl_graph.learned_graph(models, generator())
    one = sfl_graph.learned_graph(models, generator(), nearest=1)
    assert ((whole > 0) & (whole.T > 0)).sum() == 0  # an edge has one direction
    for row, kept in zip(whole, one, strict=True):
        if row.any():
            np.testing.assert_allclose([row.sum(), kept.max()], 1.0)
            assert kept.argmax() == row.argmax()
    apart = stack(models)[:, None] - stack(models)[None]
    target, _ = sfl_graph.unit_rows(np.sqrt((apart**2).sum(axis=-1)))
    start, slope = generator(), sfl_graph.fit_gradient(generator(), target)
    down = {  # one step with weight decay
        name: tuple(v - 0.5 * (s + 0.1 * v) for v, s in zip(start[name], slope[name], strict=True))
        for name in start
    }
    expected = sfl_graph.row_normalized(sfl_graph.adjacency(down)[0])
    result = sfl_graph.learned_graph(models, start, steps=1, rate=0.5, decay=0.1)
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    down = {
        name: tuple(v - 0.05 * s for v, s in zip(start[name], slope[name], strict=True))
        for name in start
    }
    assert sfl_graph.fit_loss(down, target) < sfl_graph.fit_loss(start, target)


# ------------------------------------------------------------------ the norms


def test_norms_gradient_is_that_of_the_norms(setting):
    models = [network.random_parameters(np.random.default_rng(seed), 5, 6, 4) for seed in range(3)]
    targets = [(0.3, models[1]), (0.7, models[2])]

    def value(vector):
        return sum(w * np.linalg.norm(vector - flat(target)) for w, target in targets)

    slope = flat(sfl.norms_gradient(models[0], targets))
    expected = differences(value, flat(models[0]))
    np.testing.assert_allclose(slope, expected, rtol=1e-7, atol=1e-10)
    here = sfl.norms_gradient(models[0], [(0.3, models[0])])
    np.testing.assert_array_equal(flat(here), 0.0)
    # Not squared: the pull is as strong from afar.
    np.testing.assert_allclose(
        np.linalg.norm(flat(sfl.norms_gradient(models[0], targets[:1]))), 0.3
    )


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("layers", [1, 3])
def test_an_even_graph_without_norms_is_fedavg_with_equal_weights(setting, layers):
    history = sfl.run(**setting, graph=EVEN, layers=layers, **FREE)
    plain = fedavg.run(**{**setting, "sizes": [1] * COUNT})
    for models, expected in zip(history, plain, strict=True):
        for model in (models["global"], *models["personalized"]):
            assert_same(model, expected["global"])


def test_norms_pull_unless_they_are_detached(setting):
    """The published code's have no gradient: it trains as FedAvg does."""
    detached = sfl.run(**setting, graph=EVEN, detached=True)
    plain = fedavg.run(**{**setting, "sizes": [1] * COUNT})
    pulled = sfl.run(**setting, graph=EVEN)
    for t in range(ROUNDS):
        assert_same(detached[t]["global"], plain[t]["global"])
        apart = flat(pulled[t]["global"]) - flat(plain[t]["global"])
        assert np.abs(apart).max() > 1e-2
        received = setting["initial"] if t == 0 else pulled[t - 1]["global"]
        for model in pulled[t]["trained"].values():
            assert np.isfinite(flat(model)).all()  # the first step is taken at u itself
            assert network.squared_distance(model, received) > 0


def test_round_written_with_vectors(setting):
    """Clients begin at u, are held near g_i and u, and are spread over the graph three times."""
    graph = sfl_graph.row_normalized([[2, 1, 0, 0], [1, 3, 0, 0], [0, 1, 1, 0], [1, 0, 1, 2]])
    options = {"graph": graph, "graph_weight": 0.2, "global_weight": 0.5, "server_alpha": 0.8}
    first, second = sfl.run(**{**setting, "rounds": 2}, **options)
    u, own = flat(first["global"]), stack(first["personalized"])
    np.testing.assert_allclose(u, own.mean(axis=0), rtol=1e-11, atol=1e-15)
    trained = []
    for i in range(COUNT):
        theta = u
        for batch in setting["batches"][1][i]:
            model = network.unflat(theta, setting["initial"])
            _, g = network.loss_and_gradient(model, setting["x"][batch], setting["y"][batch])
            move = flat(g)
            for weight, target in ((0.2, own[i]), (0.5, u)):
                length = np.linalg.norm(theta - target)
                move = move + (weight / length * (theta - target) if length > 0 else 0)
            theta = theta - RATES[1] * move
        trained.append(theta)
    spread = 0.8 * graph @ graph @ graph @ np.array(trained) + 0.2 * np.array(trained)
    np.testing.assert_allclose(stack(second["personalized"]), spread, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(flat(second["global"]), spread.mean(axis=0), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(second["weights"].sum(axis=1), 1.0, rtol=1e-13)


def test_without_a_graph_clients_keep_their_own(setting):
    for models in sfl.run(**setting, graph=np.eye(COUNT)):
        for i in range(COUNT):
            assert_same(models["personalized"][i], models["trained"][i])
    for models in sfl.run(**setting, server_alpha=0.0):
        for i in range(COUNT):
            assert_same(models["personalized"][i], models["trained"][i])


def test_absent_clients_stand_in_with_their_last_smoothed_model(setting):
    """Public code keeps one object for all that were never drawn, which all get the last's."""
    ring = sfl_graph.row_normalized(np.eye(COUNT) + np.roll(np.eye(COUNT), 1, axis=1))
    history = sfl.run(**{**setting, "cohorts": PARTIAL}, graph=ring, layers=1)
    held = stack([setting["initial"]] * COUNT)
    for t, models in enumerate(history):
        assert set(models["trained"]) == set(PARTIAL[t])
        sent = held.copy()
        for i, model in models["trained"].items():
            sent[i] = flat(model)
        held = ring @ sent
        np.testing.assert_allclose(stack(models["personalized"]), held, rtol=1e-11, atol=1e-15)
        np.testing.assert_allclose(
            flat(models["global"]), held.mean(axis=0), rtol=1e-11, atol=1e-15
        )
    first = stack(history[0]["personalized"])  # of 1 and 3, never drawn, both have a neighbour
    assert np.abs(first[1] - first[3]).max() > 1e-3
    nobody = sfl.run(**{**setting, "rounds": 1, "cohorts": [[]]})[0]
    assert nobody["personalized"] == [setting["initial"]] * COUNT
    assert nobody["global"] is setting["initial"]


def test_graphs_by_name(setting):
    x, y = setting["x"], setting["y"]
    labels = sfl_graph.label_graph(setting["clients"], y)
    common = {**setting, "rounds": 1, "layers": 1, **FREE}
    (by_label,) = sfl.run(**common)
    np.testing.assert_allclose(by_label["weights"], labels)
    trained = [
        sgd(setting["initial"], setting["batches"][0][i], x, y, RATES[0]) for i in range(COUNT)
    ]
    (near,) = sfl.run(**common, graph="neighbours", neighbours=2)
    expected = sfl_graph.neighbour_graph(trained, setting["initial"], 2)
    np.testing.assert_allclose(near["weights"], expected)
    assert set(np.count_nonzero(expected, axis=1)) == {2}
    (learned,) = sfl.run(**common, graph="learned", generators=[generator(0)])
    fitted = sfl_graph.learned_graph(trained, generator(0))
    full = fitted.any(axis=1)
    assert full.any() and not full.all()  # a row is empty: in the published code it would shrink
    np.testing.assert_allclose(learned["weights"][full], (0.95 * labels + 0.05 * fitted)[full])
    np.testing.assert_allclose(learned["weights"][~full], labels[~full])
    with pytest.raises(ValueError, match="Unknown graph"):
        sfl.run(**setting, graph="roads")


def test_identical_clients_stay_alike_and_one_client_is_its_own_mean(setting):
    for models in sfl.run(**identical(setting)):
        for model in models["personalized"]:
            assert_same(model, models["global"])
    single = {**setting, "clients": setting["clients"][:1], "cohorts": [[0]] * ROUNDS}
    plain = fedavg.run(**single)
    for models, expected in zip(sfl.run(**single, **FREE), plain, strict=True):
        assert_same(models["personalized"][0], expected["global"])
