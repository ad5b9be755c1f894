"""FedBABU's reference: the frozen head, averaged bodies, fine-tuning."""

import numpy as np
import pytest

from tests.references import fedavg, fedbabu, fedrep, network
from tests.references.averaging import WEIGHTINGS
from tests.references.local_sgd import sgd
from tests.references.small import (
    PARTIAL,
    RATES,
    ROUNDS,
    SIZES,
    assert_same,
    defaults,
    flat,
    further_batches,
)


def head(model):
    return flat({"head": model["head"]})


def body(model):
    return flat({layer: model[layer] for layer in fedrep.body_of(model)})


def test_the_head_stays_to_the_bit_whatever_the_optimizer_does(setting):
    """A gradient set to 0 would not be enough: decay and momentum would still move the head."""
    options = {"momentum": 0.9, "weight_decay": 0.1}
    for models in fedbabu.run(**{**setting, "cohorts": PARTIAL}, **options):
        np.testing.assert_array_equal(head(models["global"]), head(setting["initial"]))
        for model in models["personalized"]:
            assert model is models["global"]


def test_momentum_and_decay_of_the_body_by_hand(setting):
    batches, x, y = setting["batches"][0][3][:2], setting["x"], setting["y"]
    model = fedbabu.descend(setting["initial"], ["hidden"], batches, x, y, 0.3, 0.9, 0.1)
    theta, velocity = body(setting["initial"]), 0.0
    for batch in batches:
        whole = {**setting["initial"], **network.unflat(theta, {"hidden": model["hidden"]})}
        slope = body(network.loss_and_gradient(whole, x[batch], y[batch])[1])
        velocity = 0.9 * velocity + slope + 0.1 * theta
        theta = theta - 0.3 * velocity
    np.testing.assert_allclose(body(model), theta, rtol=1e-13)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_bodies_are_averaged(setting, weighting):
    common = {**setting, "rounds": 1, "cohorts": [[0, 3]], "weighting": weighting}
    (after,) = fedbabu.run(**common)
    bodies = [
        body(sgd(setting["initial"], setting["batches"][0][i], setting["x"], setting["y"],
                 RATES[0], layers=["hidden"]))
        for i in (0, 3)
    ]  # fmt: skip
    shares = np.array([SIZES[0], SIZES[3]]) if weighting == "size" else np.ones(2)
    mean = shares / shares.sum() @ np.array(bodies)
    np.testing.assert_allclose(body(after["global"]), mean, rtol=1e-12)


def test_one_client_trains_its_body_and_nobody_changes_nothing(setting):
    model = setting["initial"]
    for t, models in enumerate(fedbabu.run(**{**setting, "cohorts": [[2]] * ROUNDS})):
        batches = setting["batches"][t][2]
        model = sgd(model, batches, setting["x"], setting["y"], RATES[t], layers=["hidden"])
        assert_same(models["global"], model)
    (nobody,) = fedbabu.run(**{**setting, "rounds": 1, "cohorts": [[]]})
    assert nobody["global"] is setting["initial"]


@pytest.mark.parametrize("part", fedbabu.PARTS)
def test_fine_tuning_moves_a_copy_of_its_part(setting, part):
    tuning = further_batches(setting)[0]
    tuning[1] = []
    plain = fedbabu.run(**setting)
    tuned = fedbabu.run(
        **setting, tuning_batches=tuning, part=part, tuning_rate=0.1, tuning_momentum=0.0
    )
    assert "tuned" not in tuned[0]
    for models, expected in zip(tuned, plain, strict=True):
        np.testing.assert_array_equal(flat(models["global"]), flat(expected["global"]))
    model, layers = plain[-1]["global"], fedbabu.layers_of_part(plain[-1]["global"], part)
    for i, own in enumerate(tuned[-1]["tuned"]):
        expected = sgd(model, tuning[i], setting["x"], setting["y"], 0.1, layers=layers)
        assert_same(own, expected)
        for layer in model:
            moved = np.any(flat({layer: own[layer]}) != flat({layer: model[layer]}))
            assert moved == (layer in layers and i != 1)
    with pytest.raises(ValueError, match="Unknown part 'neck'"):
        fedbabu.layers_of_part(model, "neck")


def test_fine_tuning_takes_the_authors_optimizer(setting):
    tuning = further_batches(setting)[0]
    after = fedbabu.run(**setting, tuning_batches=tuning)[-1]
    expected = fedbabu.descend(
        after["global"], ["hidden", "head"], tuning[0], setting["x"], setting["y"], 1e-3, 0.9
    )
    assert_same(after["tuned"][0], expected)


def test_a_trained_head_makes_another_algorithm(setting):
    frozen, plain = fedbabu.run(**setting, weighting="size")[-1], fedavg.run(**setting)[-1]
    assert np.abs(body(frozen["global"]) - body(plain["global"])).max() > 1e-3


def test_defaults_are_those_of_the_specification():
    assert defaults(fedbabu.run) == {
        "momentum": 0.0,
        "weight_decay": 0.0,
        "weighting": "uniform",
        "tuning_batches": None,
        "tuning_rate": 1e-3,
        "tuning_momentum": 0.9,
        "part": "full",
    }
