"""meta-L2C's attention, and the rounds in which it gives L2C its logits."""

import numpy as np
import pytest

from tests.references import fedavg, l2c, l2c_encoder, network
from tests.references.local_sgd import sgd
from tests.references.optimizers import adam_begin, adam_step
from tests.references.small import (
    CLASSES,
    COUNT,
    RATES,
    assert_same,
    differences,
    flat,
    further_batches,
)


@pytest.fixture
def federation(setting):
    """The setting with validation batches, and an encoder that is not too small."""
    encoder = l2c_encoder.random_encoder(np.random.default_rng(3), setting["initial"], (3, 2))
    return {
        **setting,
        "validation_batches": further_batches(setting),
        "encoder": l2c_encoder.rebuilt(2.0 * l2c_encoder.numbers(encoder), encoder),
    }


def plain(federation, **changes):
    unused = ("validation_batches", "encoder")
    return {k: v for k, v in federation.items() if k not in unused} | changes


def updates_of(seed, clients=(0, 1, 3)):
    rng = np.random.default_rng(seed)
    first = network.random_parameters(rng, 5, 6, CLASSES)
    return {
        j: l2c_encoder.update_of(first, network.random_parameters(rng, 5, 6, CLASSES))
        for j in clients
    }


def test_rows_lead_to_one_unit_each():
    kernel = np.arange(24.0).reshape(2, 3, 4)  # such as a convolution's
    rows = l2c_encoder.rows_of(kernel)
    assert rows.shape == (4, 6)
    np.testing.assert_array_equal(rows[1], kernel[..., 1].ravel())
    np.testing.assert_array_equal(l2c_encoder.rows_of(np.arange(3.0)), [[0], [1], [2]])


def test_updates_have_length_one():
    for update in updates_of(5).values():
        np.testing.assert_allclose(np.linalg.norm(flat(update)), 1.0, rtol=1e-9)
    model = network.random_parameters(np.random.default_rng(0), 5, 6, CLASSES)
    assert not flat(l2c_encoder.update_of(model, model)).any()


def test_scores_by_hand(federation):
    encoder, updates = federation["encoder"], updates_of(5)
    result = l2c_encoder.scores(encoder, updates, 1)
    for j, score in zip(updates, result, strict=True):
        parts = []
        for name in ("hidden", "head"):
            for leaf in ("kernel", "bias"):
                (one, two), products = encoder[name][leaf], []
                values = [updates[k][name][leaf] for k in (j, 1)]
                for unit in range(values[0].shape[-1]):
                    a, b = (
                        np.tanh(
                            np.tanh(np.ravel(v[..., unit]) @ one["kernel"] + one["bias"])
                            @ two["kernel"]
                            + two["bias"]
                        )
                        for v in values
                    )
                    products.append(a @ b)
                parts.append(np.mean(products))
        np.testing.assert_allclose(score, np.mean(parts), rtol=1e-12)
    turned = l2c_encoder.scores(encoder, updates, 3)
    np.testing.assert_allclose(turned[1], result[2], rtol=1e-13)  # alike is symmetric


def test_gradient_of_the_scores_equals_central_differences(federation):
    encoder, updates = federation["encoder"], updates_of(5)
    slope = np.array([0.7, -1.3, 99.0, 0.4])  # of all clients; 2 is not there
    gradient = l2c_encoder.scores_gradient(encoder, updates, 1, slope)

    def projected(vector):
        return (
            l2c_encoder.scores(l2c_encoder.rebuilt(vector, encoder), updates, 1) @ slope[[0, 1, 3]]
        )

    numeric = differences(projected, l2c_encoder.numbers(encoder))
    np.testing.assert_allclose(l2c_encoder.numbers(gradient), numeric, rtol=1e-6, atol=1e-10)


def test_an_encoder_of_zeros_that_does_not_learn_is_fedavg(federation):
    nothing = l2c_encoder.rebuilt(
        0.0 * l2c_encoder.numbers(federation["encoder"]), federation["encoder"]
    )
    history = l2c.run(**{**federation, "encoder": nothing}, logit_rate=0.0)
    for models, expected in zip(
        history, fedavg.run(**plain(federation, sizes=[1] * COUNT)), strict=True
    ):
        for model in models["personalized"]:
            assert_same(model, expected["global"])


def test_two_rounds_by_hand(federation):
    """The model is mixed before the step; copies are averaged over the cohort, moments are not."""
    x, y, initial = federation["x"], federation["y"], federation["initial"]
    cohorts = [[0, 1, 3], [1, 2]]
    common = {**federation, "rounds": 2, "cohorts": cohorts, "logit_rate": 0.05}
    common["encoder_decay"] = 0.5
    encoder, bases = federation["encoder"], [initial] * COUNT
    moments = [adam_begin(l2c_encoder.numbers(encoder))] * COUNT
    for t, after in enumerate(l2c.run(**common)):
        cohort, copies = cohorts[t], []
        trained = {i: sgd(bases[i], federation["batches"][t][i], x, y, RATES[t]) for i in cohort}
        updates = {i: l2c_encoder.update_of(initial, trained[i]) for i in cohort}
        deltas = np.array([flat(bases[i]) - flat(trained[i]) for i in cohort])
        before = list(bases)
        for i in cohort:

            def mixture(
                vector, i=i, encoder=encoder, updates=updates, deltas=deltas, before=before
            ):
                found = np.exp(l2c_encoder.scores(l2c_encoder.rebuilt(vector, encoder), updates, i))
                return network.unflat(flat(before[i]) - found / found.sum() @ deltas, initial)

            start, batch = l2c_encoder.numbers(encoder), federation["validation_batches"][t][i][0]

            def loss(vector, batch=batch, mixture=mixture):
                return network.loss_and_gradient(mixture(vector), x[batch], y[batch])[0]

            bases[i] = mixture(start)
            assert_same(after["personalized"][i], bases[i])
            slope = differences(loss, start, 1e-4)
            copy, moments[i] = adam_step(
                start, slope, moments[i], 0.05, 0.9, 0.99, weight_decay=0.5
            )
            # An element whose slope is nothing but rounding may step either way.
            copies.append(np.where(abs(slope) > 1e-7, copy, np.nan))
        mean = np.mean(copies, axis=0)
        found = l2c_encoder.numbers(after["encoder"])
        sure = np.isfinite(mean)
        assert sure.mean() > 0.9
        np.testing.assert_allclose(found[sure], mean[sure], rtol=1e-3, atol=1e-4)
        encoder = after["encoder"]
        moments = list(after["moments"])
    assert after["moments"][1][2] == 2 and after["moments"][0][2] == 1


def test_scores_with_absent_clients_stay(federation):
    first, second = l2c.run(**{**federation, "rounds": 2, "cohorts": [[0, 1, 3], [1, 2]]})
    np.testing.assert_array_equal(first["logits"][2], 0.0)
    np.testing.assert_array_equal(second["logits"][[0, 3]], first["logits"][[0, 3]])
    np.testing.assert_array_equal(second["logits"][1][[0, 3]], first["logits"][1][[0, 3]])
    assert second["logits"][1][1] != first["logits"][1][1]
    (nobody,) = l2c.run(**{**federation, "rounds": 1, "cohorts": [[]]})
    assert nobody["encoder"] is federation["encoder"]
