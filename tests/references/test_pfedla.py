"""pFedLA's reference: hypernetworks and their gradients, aggregation, the rounds."""

from itertools import pairwise

import numpy as np
import pytest

from tests.references import fedavg, local, network, pfedla
from tests.references.local_sgd import sgd
from tests.references.small import (
    CLASSES,
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    assert_same,
    differences,
    stack,
)

# ------------------------------------------------------------------ the hypernetwork

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
        result = leaves(*pfedla.hypernetwork_vjp(vector, psi, cotangent, weighting))

        def projected(numbers, vector=vector, psi=psi):
            return np.sum(
                cotangent * pfedla.hypernetwork(*rebuilt(numbers, vector, psi), weighting)
            )

        numeric = differences(projected, leaves(vector, psi), 1e-6)
        np.testing.assert_allclose(result, numeric, rtol=1e-5, atol=1e-8)
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


# ------------------------------------------------------------------ the rounds


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


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
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
