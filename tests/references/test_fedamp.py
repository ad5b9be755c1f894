"""The references of FedAMP and HeurFedAMP: weights, limits, a round by hand, the pull."""

import numpy as np
import pytest

from tests.references import fedamp, fedavg, fedprox, local, network
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    differences,
    flat,
    identical,
    stack,
)


def point(*numbers):
    return {"head": {"kernel": np.array([numbers]), "bias": np.zeros(1)}}


# ------------------------------------------------------------------ the weights


def test_attention_of_a_worked_example():
    models = [point(0.0, 0.0), point(1.0, 0.0), point(0.0, 2.0)]
    weights = fedamp.attention(models, sigma=2.0, alpha=0.5)
    near, far, across = (0.25 * np.exp(-d / 2) for d in (1.0, 4.0, 5.0))
    expected = [
        [1 - near - far, near, far],
        [near, 1 - near - across, across],
        [far, across, 1 - far - across],
    ]
    np.testing.assert_allclose(weights, expected, rtol=1e-14)


def test_alpha_is_bounded_by_what_keeps_weights_positive(setting):
    same = [setting["initial"]] * COUNT
    bound = fedamp.largest_alpha(2.0, COUNT)
    assert bound == 2.0 / 3.0
    weights = fedamp.attention(same, 2.0, bound)
    np.testing.assert_allclose(weights, (1 - np.eye(COUNT)) / 3, atol=1e-15)
    with pytest.raises(ValueError, match="at most sigma"):
        fedamp.attention(same, 2.0, bound * 1.01)
    with pytest.raises(ValueError, match="at most sigma"):  # FedDWA's setting for 4 clients
        fedamp.run(**setting, alpha=1.0, sigma=1.0)
    np.testing.assert_array_equal(fedamp.attention(same[:1], 2.0, 2.0), [[1.0]])


def test_cosine_attention_leaves_the_client_itself_out_of_the_softmax():
    models = [point(1.0, 0.0), point(2.0, 0.0), point(0.0, 3.0)]
    weights = fedamp.cosine_attention(models, sigma=1.5, self_weight=0.4)
    share = np.exp(1.5) / (np.exp(1.5) + 1)
    expected = [
        [0.4, 0.6 * share, 0.6 * (1 - share)],
        [0.6 * share, 0.4, 0.6 * (1 - share)],
        [0.3, 0.3, 0.4],
    ]
    np.testing.assert_allclose(weights, expected, rtol=1e-14)
    np.testing.assert_array_equal(fedamp.cosine_attention(models[:1], 1.5, 0.4), [[1.0]])
    huge = fedamp.cosine_attention(models, sigma=1e4, self_weight=0.0)
    np.testing.assert_allclose(huge, [[0, 1, 0], [1, 0, 0], [0.5, 0.5, 0]], atol=1e-12)


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_fedamp_without_the_pull_is_local_training(setting, cohorts):
    common = {**setting, "cohorts": cohorts}
    history = fedamp.run(**common, pull=0.0)
    for models, expected in zip(history, local.run(**common), strict=True):
        np.testing.assert_allclose(
            stack(models["personalized"]), stack(expected["personalized"]), rtol=1e-11, atol=1e-13
        )


def test_fedamp_is_not_local_training(setting):
    """Public code measures the pull from the model itself, or sends no gradient through it."""
    history, alone = fedamp.run(**setting, pull=0.5, sigma=10.0), local.run(**setting)
    apart = stack(history[-1]["personalized"]) - stack(alone[-1]["personalized"])
    assert np.abs(apart).max(axis=1).min() > 1e-3
    for i in range(COUNT):  # the clients stay nearer to one another

        def spread(models, i=i):
            return sum(network.squared_distance(models[i], other) for other in models)

        assert spread(history[-1]["personalized"]) < spread(alone[-1]["personalized"])


def test_fedamp_round_written_with_vectors(setting):
    common = {**setting, "rounds": 2, "cohorts": [EVERYBODY[0], [1, 2]]}
    sigma, alpha, pull = 3.0, 0.8, 0.75
    first, second = fedamp.run(**common, sigma=sigma, alpha=alpha, pull=pull)
    w = stack(first["personalized"])
    xi = alpha / sigma * np.exp(-((w[:, None] - w[None]) ** 2).sum(axis=-1) / sigma)
    np.fill_diagonal(xi, 0.0)
    np.fill_diagonal(xi, 1.0 - xi.sum(axis=1))
    for i in (1, 2):
        target, theta = xi[i] @ w, w[i]
        np.testing.assert_allclose(flat(second["cloud"][i]), target, rtol=1e-11, atol=1e-14)
        for batch in setting["batches"][1][i]:
            model = network.unflat(theta, setting["initial"])
            _, g = network.loss_and_gradient(model, setting["x"][batch], setting["y"][batch])
            theta = theta - RATES[1] * (flat(g) + pull * (theta - target))
        np.testing.assert_allclose(flat(second["personalized"][i]), theta, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(second["weights"][[1, 2]], xi[[1, 2]], rtol=1e-12)


def test_fedamp_descends_the_gradient_of_its_objective(setting):
    """One step on all of a client's samples, against central differences."""
    own = setting["clients"][2]["samples"]
    batches = [setting["batches"][0], [[], [], [own], []]]
    common = {**setting, "rounds": 2, "batches": batches}
    sigma, alpha, pull = 5.0, 1.5, 0.45
    first, second = fedamp.run(**common, sigma=sigma, alpha=alpha, pull=pull)
    target, begin = second["cloud"][2], first["personalized"][2]

    def objective(vector):
        model = network.unflat(vector, begin)
        loss, _ = network.loss_and_gradient(model, setting["x"][own], setting["y"][own])
        return loss + pull / 2 * network.squared_distance(model, target)

    taken = (flat(begin) - flat(second["personalized"][2])) / RATES[1]
    np.testing.assert_allclose(taken, differences(objective, flat(begin)), rtol=1e-6, atol=1e-9)


def test_fedamp_of_one_client_or_of_identical_ones_is_fedprox(setting):
    """All weight lies on models equal to the client's own: the pull is towards what it held."""
    single = {**setting, "clients": setting["clients"][:1], "cohorts": [[0]] * ROUNDS}
    history = fedamp.run(**single, sigma=2.0, alpha=2.0, pull=0.3)
    for models, expected in zip(history, fedprox.run(**single, mu=0.3), strict=True):
        assert_same(models["personalized"][0], expected["global"])
    same = identical(setting)
    history = fedamp.run(**same, sigma=2.0, alpha=0.5, pull=1.2)
    for models, expected in zip(history, fedprox.run(**same, mu=1.2), strict=True):
        for model in models["personalized"]:
            assert_same(model, expected["global"])


def test_fedamp_with_far_clients_pulls_each_to_itself(setting):
    """exp(-d / sigma) underflows: nobody is near, so u_i = w_i, which is not Local either."""
    history = fedamp.run(**setting, sigma=1e-6, pull=0.5)
    np.testing.assert_array_equal(history[-1]["weights"], np.eye(COUNT))
    assert_same(history[-1]["cloud"][1], history[-2]["personalized"][1])


@pytest.mark.parametrize("heuristic", [False, True])
def test_fedamp_absent_clients_keep_their_models_and_are_mixed(setting, heuristic):
    common = {**setting, "cohorts": PARTIAL}
    held = [setting["initial"]] * COUNT
    for t, models in enumerate(fedamp.run(**common, sigma=8.0, alpha=2.0, heuristic=heuristic)):
        assert set(models["cloud"]) == set(PARTIAL[t])
        for i in range(COUNT):
            if i in PARTIAL[t]:
                assert np.count_nonzero(models["weights"][i]) == COUNT
                mixed = models["weights"][i] @ stack(held)
                np.testing.assert_allclose(flat(models["cloud"][i]), mixed, rtol=1e-11, atol=1e-14)
            else:
                assert models["personalized"][i] is held[i]
                np.testing.assert_array_equal(models["weights"][i], np.eye(COUNT)[i])
        held = models["personalized"]
    nobody = fedamp.run(**{**setting, "rounds": 1, "cohorts": [[]]}, heuristic=heuristic)[0]
    assert nobody["personalized"] == [setting["initial"]] * COUNT
    np.testing.assert_array_equal(nobody["weights"], np.eye(COUNT))


def test_fedamp_begins_where_start_says(setting):
    idle = [setting["batches"][0], [[]] * COUNT]
    common = {**setting, "rounds": 2, "batches": idle, "sigma": 20.0}
    first, second = fedamp.run(**common, start="own")
    assert second["personalized"] == first["personalized"]
    first, second = fedamp.run(**common, start="cloud")
    assert second["personalized"] == [second["cloud"][i] for i in range(COUNT)]
    first, second = fedamp.run(**common, heuristic=True)  # whose default it is
    assert second["personalized"] == [second["cloud"][i] for i in range(COUNT)]
    with pytest.raises(ValueError, match="Unknown start"):
        fedamp.run(**setting, start="global")


def test_heurfedamp_with_even_weights_and_no_pull_is_uniform_fedavg(setting):
    """Everybody begins at the uniform mean of all models."""
    even = fedamp.run(**setting, heuristic=True, sigma=0.0, pull=0.0)
    plain = fedavg.run(**{**setting, "sizes": [1] * COUNT})
    for models, expected in zip(even, plain, strict=True):
        mean = stack(models["personalized"]).mean(axis=0)
        np.testing.assert_allclose(mean, flat(expected["global"]), rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(models["weights"], 1 / COUNT, rtol=1e-14)


def test_heurfedamp_with_all_weight_on_itself_and_no_pull_is_local_training(setting):
    own = fedamp.run(**setting, heuristic=True, self_weight=1.0, pull=0.0)
    for models, expected in zip(own, local.run(**setting), strict=True):
        np.testing.assert_allclose(
            stack(models["personalized"]), stack(expected["personalized"]), rtol=1e-11, atol=1e-13
        )


def test_heurfedamp_round_by_hand(setting):
    first, second = fedamp.run(
        **{**setting, "rounds": 2}, heuristic=True, sigma=4.0, self_weight=0.3, pull=0.05
    )
    w = stack(first["personalized"])
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    powers = np.exp(4.0 * unit @ unit.T) * (1 - np.eye(COUNT))
    xi = 0.3 * np.eye(COUNT) + 0.7 * powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(second["weights"], xi, rtol=1e-12)
    target = network.unflat(xi[3] @ w, setting["initial"])

    def towards(params):
        return network.scale(0.05, network.subtract(params, target))

    batches = setting["batches"][1][3]
    expected = sgd(target, batches, setting["x"], setting["y"], RATES[1], extra_gradient=towards)
    assert_same(second["personalized"][3], expected)


def test_fedamp_defaults(setting):
    common = {**setting, "sigma": 0.7}
    named = fedamp.run(**common, alpha=0.7 / 3, pull=0.1)[-1]["personalized"]
    np.testing.assert_array_equal(stack(fedamp.run(**common)[-1]["personalized"]), stack(named))


@pytest.mark.parametrize("heuristic", [False, True])
def test_a_newcomer_is_one_more_client_in_the_mixing(setting, heuristic):
    models = fedamp.run(**setting, sigma=9.0, heuristic=heuristic)[-1]["personalized"]
    options = {"sigma": 9.0, "heuristic": heuristic}
    result = fedamp.newcomer(models[3], models[:3], **options)
    alpha = fedamp.largest_alpha(9.0, COUNT)
    if heuristic:
        weights = fedamp.cosine_attention(models, 9.0, 1 / COUNT)
    else:
        weights = fedamp.attention(models, 9.0, alpha)
        larger = fedamp.newcomer(models[3], models[:3], **options, alpha=2 * alpha)
        assert_same(larger, result)
    np.testing.assert_allclose(flat(result), weights[3] @ stack(models), rtol=1e-11, atol=1e-14)
