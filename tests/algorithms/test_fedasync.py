"""FedAsync against its reference, with late clients, and in its limits."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.asynchronous import Turn
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.harness import LATE_PATTERNS, Case, over
from tests.algorithms.late import assert_costs, assert_weights, compare, late_case
from tests.references import fedasync

# FedAsync's settings and those of its reference.
VARIANTS = {
    "plga": ({}, {}),
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
            "proximal_weight": 0.3,
        },
        {"mode": "original", "alpha": 0.9, "kind": "hinge", "a": 3.0, "b": 1.0, "rho": 0.3},
    ),
    "constant": (
        {"mode": "original", "decay": "constant"},
        {"mode": "original", "kind": "constant"},
    ),
    "plga-pulled": ({"alpha": 0.5, "proximal_weight": 0.3}, {"alpha": 0.5, "rho": 0.3}),
}


QUICK = [("code-map", "plga"), ("paper-vmap", "hinge")]


# test_the_originals_decays has the other decays too.
@over(LATE_PATTERNS, QUICK, VARIANTS, again=("poly", "constant"))
def test_fedasync(pattern, variant):
    settings, options = VARIANTS[variant]
    case = late_case(pattern)
    records = compare(case, "fedasync", settings, fedasync.run, options)
    assert_costs(records, case.arrivals, case.starts, case.batches())
    if "mode" not in settings:
        alpha = settings.get("alpha", 0.8)
        assert_weights(case, records, case.arrivals, lambda x: alpha / np.sqrt(x + 1))


ORIGINAL = {
    "constant": {},
    "poly": {"decay_rate": 0.9},
    "hinge": {"decay_rate": 3.0, "decay_start": 1.0},
}


@pytest.mark.parametrize("decay", ORIGINAL)
def test_the_originals_decays(decay):
    """One aggregation of uploads of every lateness, one after the other by their clients' ids."""
    case = Case(stragglers={1: 1})
    late, ids = jnp.array([0, 1, 2, 5, 3]), jnp.array([2, 0, 4, 1, 3])
    here = jnp.array([True, True, True, True, False])
    cohort = replace(case.cohort(0), staleness=late, ids=ids)
    ctx = pfl.Context(case.federation, case.key, jnp.int32(0), jnp.int32(9), cohort)
    server, apart = {"params": case.initial()}, np.array([1.0, 3.0, -2.0, 5.0, 7.0])
    uploads = jax.tree.map(lambda w: w + apart.reshape(-1, *[1] * w.ndim), server)
    options = {"mode": "original", "alpha": 0.6, "decay": decay, **ORIGINAL[decay]}
    turn = Turn(cohort, here, here, uploads, jnp.zeros(5))
    aggregate = jax.jit(partial(pfl.make_algorithm("fedasync", options).aggregate, ctx, turn))
    found, parts = aggregate(uploads, server)
    named = {"a": options.get("decay_rate", 0.5), "b": options.get("decay_start", 4.0)}
    moved = 0.0
    for k in (1, 3, 0, 2):  # in the order of their ids
        share = 0.6 * fedasync.decay(decay, int(late[k]), **named)
        moved += share * (apart[k] - moved)
    for new, old in zip(jax.tree.leaves(found), jax.tree.leaves(server), strict=True):
        np.testing.assert_allclose(new - old, np.full(old.shape, moved), rtol=1e-12)
    assert float(parts[4]) == 0


@pytest.mark.slow
def test_the_original_with_alpha_0_stands_still_and_with_alpha_1_takes_the_last_upload():
    settings = {"mode": "original", "decay": "constant"}
    federation = toy_federation()
    still = states_of(pfl.make_algorithm("fedasync", {**settings, "alpha": 0}), federation)
    taken = states_of(pfl.make_algorithm("fedasync", {**settings, "alpha": 1}), federation)
    for state, other in zip(still[1:], taken[1:], strict=True):
        assert_close(state.server, still[0].server, "stands still", 0)
        last = jax.tree.map(lambda leaf: leaf[-1], other.trained)
        assert_close(other.server, last, "what arrived", 1e-12)
    assert abs(taken[1].server["params"]["head"]["bias"]).max() > 1e-6  # it began at 0
