"""FedProx-FT's reference: what trains, what fine-tunes, and the fine-tuning with a budget."""

import numpy as np
import pytest

from tests.references import fedavg_ft, fedprox, fedprox_ft, network
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    flat,
    further_batches,
)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_training_is_fedprox_and_copies_follow_the_loss_alone(setting, cohorts):
    common, tuning = {**setting, "cohorts": cohorts}, further_batches(setting)
    plain = fedprox.run(**common, mu=0.7)
    for t, models in enumerate(fedprox_ft.run(**common, mu=0.7, tuning_batches=tuning)):
        np.testing.assert_array_equal(flat(models["global"]), flat(plain[t]["global"]))
        for i in range(COUNT):  # absent clients too: everybody is scored
            expected = sgd(models["global"], tuning[t][i], setting["x"], setting["y"], RATES[t])
            assert_same(models["personalized"][i], expected)


def test_without_the_term_it_is_fedavg_ft_and_without_steps_fedprox(setting):
    tuning = further_batches(setting)
    wanted = fedavg_ft.run(**setting, tuning_batches=tuning)
    for models, expected in zip(
        fedprox_ft.run(**setting, mu=0.0, tuning_batches=tuning), wanted, strict=True
    ):
        for one, other in zip(models["personalized"], expected["personalized"], strict=True):
            assert_same(one, other)
    idle = fedprox_ft.run(**setting, mu=0.7, tuning_batches=[[[]] * COUNT] * ROUNDS)
    for models in idle:
        assert all(model is models["global"] for model in models["personalized"])


def test_a_pull_holds_copies_near_the_global_model(setting):
    """Two steps by hand; where pull times rate is 1, only the last gradient is left."""
    tuning = [[own[:2] for own in of_round] for of_round in further_batches(setting)]
    last = [None] * (ROUNDS - 1) + tuning[-1:]
    rates = [0.25] * ROUNDS
    options = {"mu": 0.3, "tuning_batches": last, "tuning_rate": rates}
    *earlier, models = fedprox_ft.run(**setting, **options, tuning_pull=0.6)
    assert not any("personalized" in before for before in earlier)
    theta = start = flat(models["global"])
    for batch in last[-1][3]:
        model = network.unflat(theta, models["global"])
        _, g = network.loss_and_gradient(model, setting["x"][batch], setting["y"][batch])
        theta = theta - 0.25 * (flat(g) + 0.6 * (theta - start))
    np.testing.assert_allclose(flat(models["personalized"][3]), theta, rtol=1e-12)

    models = fedprox_ft.run(**setting, **options, tuning_pull=4.0)[-1]
    first = sgd(models["global"], last[-1][3][:1], setting["x"], setting["y"], 0.25)
    batch = last[-1][3][1]
    _, g = network.loss_and_gradient(first, setting["x"][batch], setting["y"][batch])
    expected = flat(models["global"]) - 0.25 * flat(g)
    np.testing.assert_allclose(flat(models["personalized"][3]), expected, rtol=1e-11)


def test_budget_of_the_published_code():
    assert [fedavg_ft.budget(2, size, 10) for size in (4, 10, 26, 100)] == [2, 2, 5, 20]
