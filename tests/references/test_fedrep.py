"""FedRep's reference: its two phases, who keeps what, the last pass."""

import numpy as np
import pytest

from tests.references import fedbabu, fedrep, network
from tests.references.averaging import WEIGHTINGS
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    SIZES,
    assert_same,
    defaults,
    flat,
    further_batches,
)

NOTHING = [[[]] * COUNT] * ROUNDS


def head(model):
    return flat({"head": model["head"]})


def body(model):
    return flat({layer: model[layer] for layer in fedrep.body_of(model)})


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_without_head_steps_fedrep_trains_as_fedbabu_does(setting, cohorts, weighting):
    common = {**setting, "cohorts": cohorts, "weighting": weighting}
    history = fedrep.run(**common, head_batches=NOTHING)
    for models, expected in zip(history, fedbabu.run(**common), strict=True):
        for model in models["personalized"]:
            assert_same(model, expected["global"])


def test_without_body_steps_each_client_trains_its_head_alone(setting):
    heads = further_batches(setting)
    history = fedrep.run(**{**setting, "batches": NOTHING}, head_batches=heads)
    own = [setting["initial"]] * COUNT
    for t, models in enumerate(history):
        for i in range(COUNT):
            own[i] = sgd(own[i], heads[t][i], setting["x"], setting["y"], RATES[t], layers=["head"])
            assert_same(models["personalized"][i], own[i])


def test_a_round_by_hand(setting):
    """The head is trained first, on the received body; then the body under the new head."""
    heads, x, y = further_batches(setting), setting["x"], setting["y"]
    cohort, like = [0, 2, 3], setting["initial"]
    common = {**setting, "rounds": 1, "cohorts": [cohort]}
    (after,) = fedrep.run(**common, head_batches=heads, weighting="size")
    bodies = []
    for i in cohort:
        theta = like
        for batches, layer in ((heads[0][i], "head"), (setting["batches"][0][i], "hidden")):
            for batch in batches:
                slope = network.loss_and_gradient(theta, x[batch], y[batch])[1][layer]
                moved = {name: theta[layer][name] - RATES[0] * slope[name] for name in slope}
                theta = {**theta, layer: moved}
        np.testing.assert_allclose(flat(after["trained"][i]), flat(theta), rtol=1e-13)
        np.testing.assert_array_equal(head(after["personalized"][i]), head(after["trained"][i]))
        bodies.append(body(theta))
    sizes = np.array([SIZES[i] for i in cohort])
    mean = sizes / sizes.sum() @ np.array(bodies)
    (uniform,) = fedrep.run(**common, head_batches=heads)
    for i in range(COUNT):
        np.testing.assert_allclose(body(after["personalized"][i]), mean, rtol=1e-12)
        np.testing.assert_allclose(
            body(uniform["personalized"][i]), np.mean(bodies, axis=0), rtol=1e-12
        )
    other = fedrep.run(**{**common, "batches": heads}, head_batches=setting["batches"])[0]
    assert np.abs(flat(other["personalized"][0]) - flat(after["personalized"][0])).max() > 1e-3


def test_absent_clients_keep_their_heads_under_the_new_body(setting):
    heads = further_batches(setting)
    before = [setting["initial"]] * COUNT
    history = fedrep.run(**{**setting, "cohorts": PARTIAL}, head_batches=heads)
    for cohort, models in zip(PARTIAL, history, strict=True):
        assert "head" not in models["body"]  # neither averaged nor sent
        for i in range(COUNT):
            kept = models["personalized"][i]["head"] is before[i]["head"]
            assert kept == (i not in cohort)
            np.testing.assert_array_equal(body(models["personalized"][i]), flat(models["body"]))
        before = models["personalized"]
    (nobody,) = fedrep.run(**{**setting, "rounds": 1, "cohorts": [[]]}, head_batches=heads)
    assert_same(nobody["personalized"][1], setting["initial"])


def test_one_client_alternates_between_its_parts(setting):
    heads, model = further_batches(setting), setting["initial"]
    for t, models in enumerate(
        fedrep.run(**{**setting, "cohorts": [[2]] * ROUNDS}, head_batches=heads)
    ):
        x, y = setting["x"], setting["y"]
        model = sgd(model, heads[t][2], x, y, RATES[t], layers=["head"])
        model = sgd(model, setting["batches"][t][2], x, y, RATES[t], layers=["hidden"])
        assert_same(models["personalized"][2], model)


def test_a_last_pass_over_the_heads_is_a_copy(setting):
    heads = further_batches(setting)
    last = further_batches(setting, 12)[0]
    common = {**setting, "cohorts": PARTIAL, "head_batches": heads}
    plain, tuned = fedrep.run(**common), fedrep.run(**common, final_head_batches=last)
    assert "tuned" not in tuned[0] and "tuned" not in plain[-1]
    for i in range(COUNT):
        model = plain[-1]["personalized"][i]
        np.testing.assert_array_equal(flat(tuned[-1]["personalized"][i]), flat(model))
        expected = sgd(model, last[i], setting["x"], setting["y"], RATES[-1], layers=["head"])
        assert_same(tuned[-1]["tuned"][i], expected)
        np.testing.assert_array_equal(body(tuned[-1]["tuned"][i]), body(model))


def test_an_unknown_weighting_is_refused(setting):
    with pytest.raises(ValueError, match="Unknown weighting 'loss'"):
        fedrep.run(**setting, head_batches=NOTHING, weighting="loss")


def test_defaults_are_those_of_the_specification():
    assert defaults(fedrep.run) == {"weighting": "uniform", "final_head_batches": None}
