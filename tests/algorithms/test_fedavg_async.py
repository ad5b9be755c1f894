"""FedAvg (Sync), FedAvg (Async) and FedAsync against their references, with late clients."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.toys import assert_close, play, toy_federation
from tests.algorithms.harness import (
    LATE_PATTERNS,
    LATE_ROUNDS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.reference import fedasync, fedavg_async

METHODS = {"fedavg_async": {}, "fedavg_sync": {"synchronous": True}}
# FedAsync's settings and those of its reference.
VARIANTS = {
    "tick": ({}, {}),
    "poly": (
        {"mode": "original", "alpha": 0.6, "decay_rate": 0.9},
        {"mode": "original", "alpha": 0.6, "kind": "poly", "a": 0.9},
    ),
    "hinge": (
        {
            "mode": "original",
            "alpha": 0.9,
            "decay": "hinge",
            "decay_rate": 3.0,
            "decay_start": 1.0,
            "proximal": 0.3,
        },
        {"mode": "original", "alpha": 0.9, "kind": "hinge", "a": 3.0, "b": 1.0, "rho": 0.3},
    ),
    "constant": (
        {"mode": "original", "decay": "constant"},
        {"mode": "original", "kind": "constant"},
    ),
    "tick-pulled": ({"alpha": 0.5, "proximal": 0.3}, {"alpha": 0.5, "rho": 0.3}),
}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def compare(name, pattern, settings, run, options):
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS[pattern])
    wanted = run(case.initial(), case.clients(), LATE_ROUNDS, **case.asynchronous(), **options)
    states, records = case.play(pfl.make_method(name, settings))
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_close(state.server["params"], models["global"], "global")
        assert_models(state.trained, models["personalized"], "personalized")
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
        assert_losses(record, case, "personalized", models["personalized"])
    return case, records


def assert_records(case, records, arrivals):
    """Arrivals weighted by their sizes, and how late each is."""
    for t, (record, here) in enumerate(zip(records, arrivals, strict=True)):
        share = case.sizes * np.isin(np.arange(case.num_clients), here)
        share = share / max(share.sum(), 1)
        np.testing.assert_allclose(record["matrices"]["mixing"], share[None], 1e-9, 1e-12)
        cohort = case.cohort(t)
        late = np.asarray(cohort.staleness)
        said = record["clients"]["staleness"]
        np.testing.assert_array_equal(said[list(here)], late[list(here)])


def assert_costs(records, ups, downs, case):
    """One copy of every block up from `ups[t]` and down to `downs[t]`, who alone train."""
    batches = case.batches()
    for record, up, down, walk in zip(records, ups, downs, batches, strict=True):
        assert_steps(record, down, walk)
        for sent, who in ((record["up"], up), (record["down"], down)):
            expected = np.isin(np.arange(case.num_clients), who)
            np.testing.assert_array_equal(sent, np.repeat(expected[:, None], 2, axis=1))


@over(LATE_PATTERNS, [("code-map", "fedavg_sync"), ("paper-vmap", "fedavg_async")], METHODS)
def test_fedavg(pattern, variant):
    case, records = compare(variant, pattern, {}, fedavg_async.run, METHODS[variant])
    who = (case.arrivals, case.starts)
    if variant == "fedavg_sync":
        who = (case.cohorts, case.cohorts)
    assert_costs(records, *who, case)
    assert_records(case, records, who[0])


@over(LATE_PATTERNS, [("code-map", "tick"), ("paper-vmap", "hinge")], VARIANTS)
def test_fedasync(pattern, variant):
    settings, options = VARIANTS[variant]
    case, records = compare("fedasync", pattern, settings, fedasync.run, options)
    assert_costs(records, case.arrivals, case.starts, case)


@pytest.mark.parametrize("mode", ["tick", pytest.param("original", marks=pytest.mark.slow)])
def test_fedasync_with_alpha_0_stands_still_and_with_alpha_1_takes_the_uploads(mode):
    """All of them by their sizes, or one after the other: then the last one stays."""
    settings = {"mode": mode} | ({"decay": "constant"} if mode == "original" else {})
    federation = toy_federation()
    still, _ = play(pfl.make_method("fedasync", {**settings, "alpha": 0}), federation)
    taken, _ = play(pfl.make_method("fedasync", {**settings, "alpha": 1}), federation)
    sizes = np.asarray(federation.data.train.size)
    shares = sizes / sizes.sum() if mode == "tick" else np.eye(len(sizes))[-1]
    for state, other in zip(still[1:], taken[1:], strict=True):
        assert_close(state.server, still[0].server, "stands still", 0)
        mean = jax.tree.map(lambda leaf: np.tensordot(shares, leaf, 1), other.trained)
        assert_close(other.server, mean, "what arrived", 1e-12)
    assert abs(taken[1].server["params"]["head"]["bias"]).max() > 1e-6  # it began at 0


@pytest.mark.parametrize("name", ["fedavg_async", "lga"])
def test_what_a_late_client_lost_does_not_arrive(name):
    """A straggler whose training overflows in phase 0 has nothing to send in phase d."""
    federation = toy_federation(diverging=3, stragglers={3: 2})
    _, records = play(pfl.make_method(name), federation, rounds=4)
    arrived = [bool(record["up"][3].any()) for record in records]
    weights = [record["matrices"]["mixing"][0, 3] for record in records]
    assert arrived == [False] * 4
    assert weights == [0] * 4
    sound = toy_federation(stragglers={3: 2})
    _, records = play(pfl.make_method(name), sound, rounds=4)
    assert [bool(record["up"][3].any()) for record in records] == [False, False, True, True]


def test_the_patterns_have_what_they_are_named_for():
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS["nobody-arrives"])
    assert [len(arrivals) for arrivals in case.arrivals] == [0, 5, 0, 5, 0, 5, 0]
    case = Case(rounds=LATE_ROUNDS, **LATE_PATTERNS["code-map"])
    assert [3 in starts for starts in case.starts] == [t in (0, 3, 4) for t in range(7)]
    assert [3 in arrivals for arrivals in case.arrivals] == [t in (2, 3, 6) for t in range(7)]
    assert [3 in cohort for cohort in case.cohorts] == [t == 3 for t in range(7)]
