"""WAFFLE and Weight Erosion against their references, and WAFFLE's limits."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import assert_close, play
from tests.algorithms.harness import Case, stack
from tests.reference import waffle, weight_erosion

FULL = {"full-map": {}, "full-vmap": {"client_execution": "vmap"}}
ROUNDS = 3


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("rule", ["rebased", "literal"])
@pytest.mark.parametrize("pattern", FULL)
def test_waffle(pattern, rule):
    case = Case(**FULL[pattern])
    wanted = waffle.run(
        case.initial(), case.clients(), ROUNDS, **case.common(), alice=3, control_rule=rule
    )
    settings = {"alice": 3, "control_update": rule}
    states, records = case.play(pfl.make_method("waffle", settings))
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_close(state.server["params"], models["alice"], "alice")
        assert_close(state.control, models["control"], "control")
        assert_close(state.controls, stack(models["controls"])["params"], "controls")
        np.testing.assert_allclose(record["matrices"]["mixing"][0], models["weights"], 1e-9, 1e-9)
        np.testing.assert_allclose(state.previous, models["raw"], 1e-9, 1e-9)
        scores = record["scores"]["personalized/test/loss"]
        loss = case.test_losses([models["alice"]] * 5)[3]
        np.testing.assert_allclose(scores, [np.nan] * 3 + [loss, np.nan], 1e-9)


def test_the_specs_vector():
    raw = waffle.raw_weights([0.0, 1.0, 2.0, 3.0], 0, 0.5, 0.5)
    np.testing.assert_allclose(raw / raw.sum(), [0.583333, 0.416667, 0, 0], atol=1e-6)


def test_all_weight_on_alice_is_her_local_training():
    # In a run of two rounds the cut 0.95 R falls on the second; two more smooth the history out.
    case = Case()
    algorithm = pfl.make_method("waffle", {"alice": 3})
    states, records = play(algorithm, case.federation, 40)
    weights = np.array([record["matrices"]["mixing"][0] for record in records])
    np.testing.assert_allclose(weights.sum(1), 1)
    assert (weights[:, 3] >= weights.max(1) - 1e-12).all()
    np.testing.assert_array_equal(weights[39], [0, 0, 0, 1, 0])
    assert_close(
        states[40].control,
        jax.tree.map(lambda c: c[3], states[40].controls),
        "with one weight left, c is Alice's own: corrections cancel",
    )


@pytest.mark.parametrize("pattern", FULL)
def test_weight_erosion(pattern):
    case = Case(**FULL[pattern])
    penalties = {"distance_penalty": 0.2, "size_penalty": 0.5}
    wanted = weight_erosion.run(
        case.initial(), case.clients(), ROUNDS, **case.common(), alice=3, batch_size=4, **penalties
    )
    states, records = case.play(pfl.make_method("weight_erosion", {"alice": 3, **penalties}))
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_close(state.server["params"], models["alice"], "alice")
        np.testing.assert_allclose(state.alpha, models["alpha"], 1e-9, 1e-9)
        np.testing.assert_allclose(record["matrices"]["mixing"][0], models["weights"], 1e-9, 1e-9)
    assert 0 < states[-1].alpha.min() < 1 or (states[-1].alpha == 0).any()
    assert states[-1].alpha[3] == 1
