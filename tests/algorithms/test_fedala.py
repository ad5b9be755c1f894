"""FedALA against its reference: windows, weights, who adapts; and its limits."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import keys
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    FourLayers,
    assert_losses,
    assert_models,
    assert_steps,
    over,
    stack,
)
from tests.references import fedala

# Settings, and the network and its upper layers.
VARIANTS = {
    "everyone": ({"most_passes": 14}, None, ("head",)),
    "selected-two-layers": (
        {"who": "selected", "layers": 2, "percent": 50, "weight_rate": 3.0, "threshold": 0.02},
        FourLayers,
        ("hidden_c", "head"),
    ),
}
QUICK = [("partial-map", "everyone"), ("full-vmap", "selected-two-layers")]


def algorithm(**settings):
    return pfl.make_algorithm("fedala", settings)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@cache
def rounds_of(pattern, variant):
    settings, network, _ = VARIANTS[variant]
    case = Case(model=network and network(), **PATTERNS[pattern])
    return case, *case.run_rounds(algorithm(**settings))


def window_batches(case, percent):
    """[t][i]: one pass over the window that client i draws in round t."""
    schedule, rounds = case.federation.schedule, []
    for t in range(case.rounds):
        key, clients = keys.of_round(case.key, "window", t), []
        for i in range(case.num_clients):
            samples = case.samples(i)
            last = len(samples) - max(1, int(percent / 100 * len(samples)))
            own = jax.random.fold_in(key, int(case.federation.data.ids[i]))
            window = fedala.window(samples, percent, int(jax.random.randint(own, (), 0, last + 1)))
            parts = np.split(window, range(schedule.batch_size, len(window), schedule.batch_size))
            whole = [len(p) == schedule.batch_size or not schedule.drop_last for p in parts]
            clients.append([p for p, fits in zip(parts, whole, strict=True) if fits])
        rounds.append(clients)
    return rounds


def reference(case, settings, top):
    names = ("weight_rate", "threshold", "most_passes", "who")
    return fedala.run(
        case.initial(),
        case.clients(),
        case.rounds,
        **case.common(),
        adaptation_batches=window_batches(case, settings.get("percent", 80)),
        top=top,
        **{name: settings[name] for name in names if name in settings},
    )


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    case, states, records = rounds_of(pattern, variant)
    settings, _, top = VARIANTS[variant]
    wanted, batches = reference(case, settings, top), case.batches()
    assert set(states[0].weights["params"]) == {*case.initial()}
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], f"round {t}: global")
        assert_models(state.models, models["personalized"], f"round {t}: personalized")
        assert_models(state.trained, models["trained"], f"round {t}: trained")
        weights = {name: state.weights["params"][name] for name in top}
        assert_close(weights, stack(models["weights"])["params"], f"round {t}: weights")
        np.testing.assert_array_equal(record["clients"]["adaptation_passes"], models["passes"])
        for name in ("personalized", "trained"):
            assert_losses(record, case, name, models[name])
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
        assert_steps(record, case.cohorts[t], batches[t])
        present = np.isin(np.arange(case.num_clients), case.cohorts[t])[:, None]
        assert (record["up"] == present).all()
        received = present if "selected" in variant else np.ones_like(present)
        assert (record["down"] == received).all()
        assert record["down"].dtype == record["up"].dtype
    assert any(np.ptp(own["head"]["kernel"]) > 0.1 for own in wanted[-1]["weights"])
    assert max(max(models["passes"]) for models in wanted) > 10
