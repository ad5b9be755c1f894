"""LG-FedAvg against its reference, and in its limits."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation, toy_for
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    FourLayers,
    assert_losses,
    assert_steps,
    over,
    sampled_federation,
    stack,
)
from tests.algorithms.norms import assert_everyones, everyones
from tests.references import lg_fedavg

# Settings, and the layers that are averaged in the network with one hidden layer or with three.
VARIANTS = {
    "head": ({}, None, ("head",)),
    "first-two-by-size": (
        {"global_layers": 2, "global_end": "first", "weighting": "size"},
        FourLayers,
        ("hidden_a", "hidden_b"),
    ),
    "last-two": ({"global_layers": 2}, FourLayers, ("hidden_c", "head")),
}
QUICK = [("partial-map", "head"), ("full-vmap", "first-two-by-size")]


@over(PATTERNS, QUICK, VARIANTS, again=("last-two",))
def test_reference(pattern, variant):
    settings, network, shared = VARIANTS[variant]
    case = Case(model=network and network(), **PATTERNS[pattern])
    common, weighting = case.common(), settings.get("weighting", "uniform")
    wanted = lg_fedavg.run(
        case.initial(), case.clients(), 3, **common, shared=shared, weighting=weighting
    )
    states, records = case.run_rounds(pfl.make_algorithm("lg_fedavg", settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_everyones(state, models["personalized"], f"round {t}")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        present = case.present(t)
        case.assert_mean(record, t, 1 if weighting == "uniform" else None)
        assert (record["up"] == present[:, None]).all()


def test_reference_with_a_warm_start():
    """FedAvg in the first round; then clients keep their layers, which begin as the average."""
    case = Case(participation=0.4)
    common = case.common()
    wanted = lg_fedavg.run(case.initial(), case.clients(), 3, **common, warmup_rounds=1)
    algorithm = pfl.make_algorithm("lg_fedavg", {"warmup_rounds": 1})
    states, records = case.run_rounds(algorithm)
    began = np.zeros(case.num_clients, bool)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        received = algorithm.received(state, np.arange(case.num_clients))
        assert_close(received["params"], stack(models["personalized"])["params"], f"round {t}")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        present = case.present(t)
        local, head = record["up"].T
        assert (local == present * (t == 0)).all() and (head == present).all()
        local, head = record["down"].T  # once more for those that have no layers of their own
        assert (local == present & ~began).all() and (head == present).all()
        began |= present & (t > 0)
    assert began.any() and not began.all()


def test_its_shared_layers_are_those_that_fedper_keeps():
    federation = toy_federation()
    names = ("lg_fedavg", "fedper")
    lg, per = (pfl.make_algorithm(name).prepare(federation).plan for name in names)
    assert all(one != other for one, other in zip(lg.shared, per.shared, strict=True))
    assert lg.shared_block_sizes().tolist() == [0, 18]


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["first", "last"])
def test_with_all_layers_it_is_fedavg_and_with_none_local_training(end):
    federation = sampled_federation()
    plain, alone = (
        run_rounds(pfl.make_algorithm(*made), federation, 2)[0][-1]
        for made in (["fedavg"], ["local", {"participants": "sampled"}])
    )
    settings = {"global_end": end, "global_layers": 2, "weighting": "size"}
    ours = states_of(pfl.make_algorithm("lg_fedavg", settings), federation, 2)[-1]
    assert_close(ours.server, plain.server, "all layers", 1e-12)
    settings["global_layers"] = 0
    ours = states_of(pfl.make_algorithm("lg_fedavg", settings), federation, 2)[-1]
    assert_close(everyones(ours, 5), alone.models, "no layer", 0)


@pytest.mark.slow
def test_warm_rounds_leave_private_batch_norm_with_its_client():
    """Warm to the end, it averages all other layers with equal weights: FedBN."""
    bn, lg = (
        pfl.make_algorithm(*made) for made in (["fedbn"], ["lg_fedavg", {"warmup_rounds": 3}])
    )
    federation = toy_for(bn, participation=0.6, batch_norm="local")
    wanted, ours = (states_of(algorithm, federation, 3)[-1] for algorithm in (bn, lg))
    assert_close(lg.received(ours, np.arange(5)), everyones(wanted, 5), "models", 1e-12)
    assert not ours.own.any()


def test_a_warm_start_shares_all_layers_at_first():
    warm = pfl.make_algorithm("lg_fedavg", {"warmup_rounds": 1})
    pfl.Simulation(warm, toy_federation()).check()
    assert warm.remarks(toy_federation()) == ["averaged all layers in the first round"]
