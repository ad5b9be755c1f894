"""L2C's reference: the gradient of the weights, mixing, pruning, absent clients."""

import numpy as np
import pytest

from tests.references import fedavg, l2c, local, network
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
    further_batches,
    longer,
)

ALONE = 1e4 * np.eye(COUNT)  # logits whose weights are one-hot


@pytest.fixture
def federation(setting):
    """The setting with validation batches."""
    return {**setting, "validation_batches": further_batches(setting)}


def random_models(seed, scaled=1.0):
    rng = np.random.default_rng(seed)
    models = [network.random_parameters(rng, 5, 6, CLASSES) for _ in range(COUNT + 1)]
    return models[0], {j: network.scale(scaled, model) for j, model in enumerate(models[1:])}


# ------------------------------------------------------------------ the weights


@pytest.mark.parametrize("active", [[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 1, 0]])
def test_gradient_of_the_logits_equals_central_differences(setting, active):
    active = np.array(active, bool)
    before, deltas = random_models(4)
    deltas = {j: delta for j, delta in deltas.items() if active[j]}
    x, y, logits = setting["x"], setting["y"], np.random.default_rng(5).normal(size=COUNT)

    def loss(vector):
        model = l2c.mixed(before, l2c.softmax_over(vector, active), deltas)
        return network.loss_and_gradient(model, x, y)[0]

    result = l2c.logit_gradient(logits, active, before, deltas, x, y)
    np.testing.assert_allclose(result, differences(loss, logits), rtol=1e-6, atol=1e-10)
    np.testing.assert_array_equal(result[~active], 0.0)
    assert abs(result.sum()) < 1e-12  # a constant added to all logits changes nothing


def test_weights_lie_on_the_simplex_of_the_active():
    logits = np.array([800.0, -3.0, 801.0, 1e5])
    weights = l2c.softmax_over(logits, np.array([True, True, True, False]))
    np.testing.assert_allclose(weights, [1 / (1 + np.e), 0, np.e / (1 + np.e), 0], rtol=1e-12)
    np.testing.assert_array_equal(l2c.softmax_over(logits, np.eye(4, dtype=bool)[1]), [0, 1, 0, 0])


def test_neighbours_to_keep():
    logits = np.array([0.5, 3.0, 0.5, 2.0, -9.0])
    for client, count, kept in (
        (4, 2, [1, 3, 4]),
        (4, 3, [0, 1, 3, 4]),
        (1, 0, [1]),
        (0, 9, range(5)),
    ):
        mask = l2c.neighbours_to_keep(logits, client, count)
        assert np.flatnonzero(mask).tolist() == list(kept)
    tied = l2c.neighbours_to_keep(np.zeros(5), 2, 2)
    assert np.flatnonzero(tied).tolist() == [0, 1, 2]


# ------------------------------------------------------------------ limits


def test_uniform_weights_of_equal_clients_are_fedavg(federation):
    history = l2c.run(**federation, logit_rate=0.0)
    plain = {k: v for k, v in federation.items() if k != "validation_batches"}
    for models, expected in zip(
        history, fedavg.run(**{**plain, "sizes": [1] * COUNT}), strict=True
    ):
        np.testing.assert_array_equal(models["weights"], 1 / COUNT)
        for model in models["personalized"]:
            assert_same(model, expected["global"])


def test_uniform_weights_on_personal_bases_subtract_the_mean_update(federation):
    before = l2c.run(**{**federation, "rounds": 2, "cohorts": PARTIAL}, logit_rate=0.0)
    after = l2c.run(**{**federation, "cohorts": [*PARTIAL[:2], EVERYBODY[0]]}, logit_rate=0.0)[2]
    bases = [flat(model) for model in before[-1]["personalized"]]
    moves = [bases[i] - flat(after["trained"][i]) for i in range(COUNT)]
    assert np.ptp(bases, axis=0).max() > 1e-3
    for i in range(COUNT):
        wanted = bases[i] - np.mean(moves, axis=0)
        np.testing.assert_allclose(flat(after["personalized"][i]), wanted, rtol=1e-11)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_one_hot_weights_are_local_training(federation, cohorts):
    common = {**federation, "cohorts": cohorts}
    history = l2c.run(**common, logits=ALONE, logit_rate=0.0)
    plain = {k: v for k, v in common.items() if k != "validation_batches"}
    for models, expected in zip(history, local.run(**plain), strict=True):
        np.testing.assert_array_equal(models["weights"], np.eye(COUNT))
        for model, alone in zip(models["personalized"], expected["personalized"], strict=True):
            assert_same(model, alone)


def test_a_client_without_present_neighbours_trains_alone(federation):
    model = federation["initial"]
    for t, models in enumerate(l2c.run(**{**federation, "cohorts": [[2]] * ROUNDS})):
        batches = federation["batches"][t][2]
        model = sgd(model, batches, federation["x"], federation["y"], RATES[t])
        assert_same(models["personalized"][2], model)
        np.testing.assert_array_equal(models["logits"], 0.0)  # one weight has nothing to learn


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("whole_pass", [False, True])
def test_two_rounds_by_hand(federation, whole_pass):
    x, y, initial = federation["x"], federation["y"], federation["initial"]
    common = {**federation, "rounds": 2, "cohorts": [[0, 1, 3]] * 2, "whole_pass": whole_pass}
    first, second = l2c.run(**common, logit_rate=0.2)
    bases, logits = {i: flat(initial) for i in (0, 1, 3)}, {i: np.zeros(4) for i in (0, 1, 3)}
    first_moments, second_moments, steps = (dict.fromkeys(bases, 0.0) for _ in range(3))
    heard = np.array([True, True, False, True])
    for t, after in enumerate((first, second)):
        trained = {}
        for i, base in bases.items():
            batches = federation["batches"][t][i]
            trained[i] = flat(sgd(network.unflat(base, initial), batches, x, y, RATES[t]))
        deltas = np.array(
            [bases[j] - trained[j] if j in bases else 0 * flat(initial) for j in range(4)]
        )
        for i in bases:
            start = bases[i]

            def mixture(logits, start=start, deltas=deltas):
                powers = np.exp(logits) * heard
                return start - powers / powers.sum() @ deltas

            bases[i] = mixture(logits[i])  # with the weights before this round's step
            np.testing.assert_allclose(flat(after["personalized"][i]), bases[i], rtol=1e-11)
            walk = federation["validation_batches"][t][i]
            for batch in walk if whole_pass else walk[:1]:

                def loss(logits, batch=batch, mixture=mixture):
                    model = network.unflat(mixture(logits), initial)
                    return network.loss_and_gradient(model, x[batch], y[batch])[0]

                g = differences(loss, logits[i])
                steps[i] += 1
                first_moments[i] = 0.9 * first_moments[i] + 0.1 * g
                second_moments[i] = 0.99 * second_moments[i] + 0.01 * g**2
                mean = first_moments[i] / (1 - 0.9 ** steps[i])
                square = second_moments[i] / (1 - 0.99 ** steps[i])
                logits[i] = logits[i] - 0.2 * mean / (np.sqrt(square) + 1e-8)
            np.testing.assert_allclose(after["logits"][i], logits[i], rtol=1e-4, atol=1e-5)
            assert after["moments"][i][2] == steps[i]
            logits[i] = after["logits"][i]  # so that the differences' errors don't add up


def test_a_step_of_the_logits_lowers_the_validation_loss(federation):
    whole = [[[client["samples"]] for client in federation["clients"]]] * ROUNDS
    (after,) = l2c.run(**{**federation, "rounds": 1, "validation_batches": whole}, logit_rate=1e-3)
    initial, everyone = federation["initial"], np.ones(COUNT, bool)
    deltas = {i: network.subtract(initial, after["trained"][i]) for i in range(COUNT)}
    for i in range(COUNT):
        own = federation["clients"][i]["samples"]
        x, y = federation["x"][own], federation["y"][own]
        losses = [
            network.loss_and_gradient(
                l2c.mixed(initial, l2c.softmax_over(logits, everyone), deltas), x, y
            )[0]
            for logits in (np.zeros(COUNT), after["logits"][i])
        ]
        assert losses[1] < losses[0]


def test_absent_clients_keep_everything_and_have_no_weight(federation):
    common = {**federation, "cohorts": PARTIAL, "logit_rate": 0.1}
    models = [federation["initial"]] * COUNT
    logits, moments = np.zeros((COUNT, COUNT)), [None] * COUNT
    for cohort, after in zip(PARTIAL, l2c.run(**common), strict=True):
        present = np.isin(np.arange(COUNT), cohort)
        assert set(after["trained"]) == set(cohort)
        for i in range(COUNT):
            if i in cohort:
                assert after["weights"][i][~present].max(initial=0.0) == 0.0
                np.testing.assert_allclose(after["weights"][i].sum(), 1.0, rtol=1e-14)
                continue
            assert after["personalized"][i] is models[i]
            np.testing.assert_array_equal(after["weights"][i], np.eye(COUNT)[i])
            np.testing.assert_array_equal(after["logits"][i], logits[i])
            assert moments[i] is None or after["moments"][i] is moments[i]
        models, logits, moments = after["personalized"], after["logits"], after["moments"]
    (nobody,) = l2c.run(**{**common, "rounds": 1, "cohorts": [[]]})
    assert all(model is federation["initial"] for model in nobody["personalized"])


def test_pruning_keeps_the_client_and_its_best_neighbours(federation):
    common = longer(federation, 6)
    common["validation_batches"] = federation["validation_batches"] * 2
    # Client 0 is absent when the time comes, and prunes when it is back.
    common["cohorts"] = [[0, 1, 2, 3], [0, 1, 2], [1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    history = l2c.run(**common, prune_after=2, logit_rate=0.3)
    for t, after in enumerate(history):
        for i in range(COUNT):
            gone = t >= 2 and any(i in cohort for cohort in common["cohorts"][2 : t + 1])
            assert after["active"][i].sum() == (2 if gone else COUNT)
            assert after["active"][i][i]
            if i in common["cohorts"][t]:
                assert not after["weights"][i][~after["active"][i]].any()
    before = history[1]["logits"].copy()
    for i in range(COUNT):
        others = np.where(np.eye(COUNT, dtype=bool)[i], -np.inf, before[i])
        wanted = np.zeros(COUNT, bool)
        wanted[[i, others.argmax()]] = True
        np.testing.assert_array_equal(history[-1]["active"][i], wanted)
    kept = l2c.run(**common, prune_after=0, neighbours=0)
    plain = {k: v for k, v in common.items() if k != "validation_batches"}
    for models, expected in zip(kept, local.run(**plain), strict=True):
        for model, alone in zip(models["personalized"], expected["personalized"], strict=True):
            assert_same(model, alone)


def test_neighbours_by_default_are_a_tenth_of_all():
    rng = np.random.default_rng(0)
    setting = {
        "initial": network.random_parameters(rng, 2, 2, 2),
        "clients": [{}] * 31,
        "rounds": 1,
        "x": rng.normal(size=(31, 2)),
        "y": rng.integers(0, 2, 31),
        "cohorts": [range(31)],
        "batches": [[[np.array([i])] for i in range(31)]],
        "validation_batches": [[[]] * 31],
        "learning_rate": [0.1],
    }
    (after,) = l2c.run(**setting, prune_after=0)
    np.testing.assert_array_equal(after["active"].sum(axis=1), 4)


def test_without_validation_samples_the_weights_stay(federation):
    batches = [[[] if i == 1 else own for i, own in enumerate(r)]
               for r in federation["validation_batches"]]  # fmt: skip
    after = l2c.run(**{**federation, "validation_batches": batches})[-1]
    np.testing.assert_array_equal(after["logits"][1], 0.0)
    assert after["moments"][1][2] == 0 and after["moments"][0][2] == ROUNDS
    assert (after["logits"][0] != 0.0).all()


def test_defaults_are_those_of_the_specification():
    assert defaults(l2c.run) == {
        "logit_rate": 1e-2,
        "prune_after": 10,
        "neighbours": None,
        "whole_pass": False,
        "betas": (0.9, 0.99),
        "logits": None,
        "encoder": None,
        "encoder_decay": 1e-2,
        "sizes": None,
    }
