"""LGA and PLGA against their reference, with late clients."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.harness import (
    LATE_PATTERNS,
    LATE_QUICK,
    LATE_ROUNDS,
    Case,
    FourLayers,
    assert_losses,
    assert_models,
    assert_steps,
    marked,
    over,
)
from tests.references import lga

# The algorithm's settings and the reference's.
VARIANTS = {
    "default": ({}, {}),
    "begun-raw-blocks": (
        {"base": "begun", "raw_cosine": True, "stage": "blocks"},
        {"equation": 10, "raw_cosine": True, "stage": "block"},
    ),
    "begun": ({"base": "begun"}, {"equation": 10}),
    "raw": ({"raw_cosine": True}, {"raw_cosine": True}),
    "stages": ({"stage": "stages"}, {"stage": "stage"}),
    "model": ({"stage": "model"}, {"stage": "model"}),
}


def compare(name, pattern, settings, options, **changes):
    """PLGA ends with a flush unless its settings say otherwise."""
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS[pattern] | changes)
    common = case.asynchronous(flush=name == "plga" and settings.get("flush", True))
    wanted = lga.run(case.initial(), case.clients(), LATE_ROUNDS, **common, **options)
    states, records = case.run_rounds(pfl.make_algorithm(name, settings))
    count, blocks = case.num_clients, len(case.federation.plan.blocks)
    for t, (models, record) in enumerate(zip(wanted, records, strict=True)):
        state = states[t + 1]
        assert_close(state.server["params"], models["global"], "global")
        assert_models(state.trained, models["trained"], "trained")
        assert_models(state.begun, models["start"], "w0")
        assert_models(state.second, models["after"], "w1")
        assert_losses(record, case, "global", [models["global"]] * count)
        if name == "plga":
            assert_models(state.personal, models["personal"], "personal")
            assert_losses(record, case, "personalized", models["personal"])
            assert_losses(record, case, "trained", models["trained"])
        else:
            assert_losses(record, case, "personalized", models["trained"])
        for sent, who in (("up", models["arrived"]), ("down", case.starts[t])):
            expected = np.isin(np.arange(count), who)[:, None]
            np.testing.assert_array_equal(record[sent], np.repeat(expected, blocks, axis=1))
        assert_steps(record, case.starts[t], common["batches"][t])
    return case, wanted, states


MORE_BLOCKS = ("raw", "stages", "model")  # in CI, where they differ most


@over(LATE_PATTERNS, [], VARIANTS, elsewhere=[v for v in VARIANTS if v != "begun"])
def test_plga(pattern, variant):
    case, wanted, _ = compare("plga", pattern, *VARIANTS[variant])
    late = bool(case.federation.participation.delay.any())
    assert any(models["predicted"] for models in wanted) == late


@over(LATE_QUICK, [("paper-vmap", "begun-raw-blocks")], VARIANTS, (*MORE_BLOCKS, "begun"))
def test_lga(pattern, variant):
    compare("lga", pattern, *VARIANTS[variant])


@pytest.mark.parametrize(
    ("variant", "flush"),
    [marked((v, True), v == "stages", v == "raw") for v in VARIANTS]
    + [marked(("model", False), True)],
)
def test_more_blocks(variant, flush):
    """Body and head are neither blocks nor tensors; and a client waits in the last round."""
    settings, options = VARIANTS[variant]
    settings = settings if flush else {**settings, "flush": False}
    case, wanted, _ = compare(
        "plga", "code-drop", settings, options, model=FourLayers(), scored=False
    )
    assert (set(wanted[-1]["arrived"]) > set(case.arrivals[-1])) == flush


@pytest.mark.slow
def test_both_have_the_same_server():
    """Up to the last round, in which PLGA alone takes what is on its way."""
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS["code-drop"])
    ours = case.states_of(pfl.make_algorithm("plga"))
    theirs = case.states_of(pfl.make_algorithm("lga"))
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert_close(one.server, other.server, "server", 1e-14)
    biases = [states[-1].server["params"]["head"]["bias"] for states in (ours, theirs)]
    assert abs(biases[0] - biases[1]).max() > 1e-6
