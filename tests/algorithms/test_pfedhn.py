"""pFedHN against its reference, which begins with the library's own hypernetwork; its limits."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.references import pfedhn

# Small, and such that every part of a step shows in three rounds.
SMALL = {"embedding_size": 2, "hidden_size": 6, "depth": 2, "server_rate": 0.2}
BITING = {"server_clip": 0.4, "clip": 0.3, "server_decay": 0.03, "server_momentum": 0.7}
LOCAL = {"momentum": 0.8, "weight_decay": 0.02}
# Settings, the reference's settings, options of the federation.
VARIANTS = {
    "sequential": ({**BITING, "embedding_rate": 3.0}, {**BITING, "embedding_rate": 0.6}, LOCAL),
    "mean": (
        {"form": "mean_vjp", **BITING},
        {"form": "mean_vjp", **BITING},
        {**LOCAL, "batch_order": "fresh"},
    ),
    "local-head": ({"local_head": True, **BITING}, BITING, LOCAL),
    "defaults": ({}, {}, {}),
}
QUICK = (("partial-map", "sequential"), ("full-vmap", "mean"), ("partial-map", "local-head"))


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def made(**settings):
    return pfl.make_algorithm("pfedhn", {**SMALL, **settings})


def layer(kernel, bias):
    return {"kernel": kernel.reshape(len(kernel), -1), "bias": np.ravel(bias)}


def written(psi):
    """A hypernetwork in the reference's form."""
    output = jax.tree.map(layer, psi.kernel["params"], psi.bias["params"])
    output = {name: leaves for name, leaves in output.items() if leaves["bias"] is not None}
    return {"trunk": [layer(*part) for part in psi.trunk], "output": output}


def in_order(case):
    """The cohorts of all rounds in the order in which clients have their turns."""
    orders = []
    for t in range(case.rounds):
        cohort = case.cohort(t)
        rows = cohort.rows[cohort.order(keys.of_round(case.key, "order", t))]
        orders.append([int(row) for row in rows if row in case.cohorts[t]])
    return orders


def whole(model):
    return {"params": model}


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    settings, options, local = VARIANTS[variant]
    case = Case(**PATTERNS[pattern] | local)
    algorithm = made(**settings)
    states, records = case.run_rounds(algorithm)
    first, initial = states[0], case.initial()
    heads = [initial["head"]] * case.num_clients if settings.get("local_head") else None
    common = case.common(cohorts=in_order(case))
    defaults = {"momentum": 0.0, "weight_decay": 0.0, "server_rate": 0.2}
    wanted = pfedhn.run(
        initial,
        case.clients(),
        3,
        **common,
        embeddings=first.embedding,
        hypernetwork=written(first.psi),
        heads=heads,
        **defaults | {k: v for k, v in local.items() if k in defaults} | options,
    )
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        ours = pfedhn.numbers(state.embedding, written(state.psi))
        theirs = pfedhn.numbers(models["embeddings"], models["hypernetwork"])
        np.testing.assert_allclose(ours, theirs, 1e-9, 1e-9)
        velocity = pfedhn.numbers(state.velocity_v, written(state.velocity_psi))
        np.testing.assert_allclose(velocity, models["velocity"], 1e-9, 1e-9)
        if heads is not None:
            own = [{"head": model["head"]} for model in models["personalized"]]
            assert_models(state.private, own, "heads")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        present = np.isin(np.arange(case.num_clients), case.cohorts[t])
        for copies in (record["up"], record["down"]):
            np.testing.assert_array_equal(copies, np.repeat(present[:, None], 2, axis=1))
