"""FedPer against its reference, and in its limits."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    FourLayers,
    assert_losses,
    assert_steps,
    over,
    sampled_federation,
)
from tests.algorithms.norms import NormCase, assert_everyones, first_model
from tests.references import fedper, norm_network

# Settings, and the personalization layers of the network with one hidden layer or with three.
VARIANTS = {
    "head": ({}, None, ("head",)),
    "uniform-two-layers": (
        {"personal_layers": 2, "weighting": "uniform"},
        FourLayers,
        ("hidden_c", "head"),
    ),
}


@over(PATTERNS, [("partial-map", "head"), ("full-vmap", "uniform-two-layers")], VARIANTS)
def test_reference(pattern, variant):
    settings, network, personal = VARIANTS[variant]
    case = Case(model=network and network(), **PATTERNS[pattern])
    common, weighting = case.common(), settings.get("weighting", "size")
    wanted = fedper.run(
        case.initial(), case.clients(), 3, **common, personal=personal, weighting=weighting
    )
    states, records = case.run_rounds(pfl.make_algorithm("fedper", settings))
    assert set(jax.tree.leaves(states[0].private)[0].shape[:1]) == {case.num_clients}
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_everyones(state, models["personalized"], f"round {t}")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)
        case.assert_mean(record, t, 1 if weighting == "uniform" else None)


@pytest.mark.slow
def test_reference_with_batch_norm():
    """Base layers are averaged with their running statistics, as FedAvg's are."""
    case = NormCase(participation=0.6, momentum=0.5, weight_decay=0.1)
    states, records = case.run_rounds(pfl.make_algorithm("fedper"))
    wanted = fedper.run(
        first_model(states), case.clients(), 3, **case.common(), train=norm_network.sgd(0.5, 0.1)
    )
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_everyones(state, models["personalized"], "models")
        assert_losses(record, case, "personalized", models["personalized"])


def test_only_the_base_travels():
    plan = pfl.make_algorithm("fedper").prepare(toy_federation()).plan
    assert dict(zip(plan.blocks, plan.shared_block_sizes(), strict=True)) == {"fc_0": 25, "head": 0}
    result = pfl.simulate(pfl.make_algorithm("fedper"), toy_federation(), 1)
    assert result.block_sizes.tolist() == [25, 0]
    assert "global/test/accuracy" not in result.scores and not result.remarks


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "options"), [({"personal_layers": 0}, {}), ({}, {"share": "all"})]
)
def test_with_everything_shared_it_is_fedavg(settings, options):
    federation = sampled_federation(**options)
    ours = run_rounds(pfl.make_algorithm("fedper", settings), federation, 2)
    plain = run_rounds(pfl.make_algorithm("fedavg"), federation, 2)
    assert_close(ours[0][-1].server, plain[0][-1].server, "server", 0)
    for name, values in plain[1][-1]["scores"].items():
        np.testing.assert_array_equal(ours[1][-1]["scores"][name], values)


@pytest.mark.parametrize(
    ("share", "remarks"),
    [
        ("all", ["shares all layers, as set by share"]),
        ("head", ["shares the head, as set by share"]),
        ("body", []),
        (lambda path: "kernel" in path, ["shares fc_0, head, as set by share"]),
    ],
)
def test_the_user_has_the_last_word_and_the_table_says_so(share, remarks):
    algorithm = pfl.make_algorithm("fedper")
    assert algorithm.remarks(algorithm.prepare(toy_federation(share=share))) == remarks
