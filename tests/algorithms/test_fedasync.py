"""FedAsync against its reference, with late clients, and the decays of the original mode."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.asynchronous import Turn
from tests.algorithms.harness import Case
from tests.algorithms.late import assert_costs, assert_weights, late_comparison
from tests.references import fedasync


def check_arrivals(one):
    case, alpha = one.case, one.algorithm.alpha
    assert_costs(one, case.arrivals, case.starts)
    if one.variant == "plga":
        assert_weights(case, one.records, case.arrivals, lambda x: alpha / np.sqrt(x + 1))


test_reference, test_contract = late_comparison(
    "fedasync",
    fedasync.run,
    settings={"proximal_weight": 0.3},
    variants={
        "plga": {"alpha": 0.5},
        "hinge": {
            "mode": "original",
            "alpha": 0.9,
            "decay": "hinge",
            "decay_rate": 3.0,
            "decay_start": 1.0,
        },
    },
    renamed={"decay": "kind", "decay_rate": "a", "decay_start": "b", "proximal_weight": "rho"},
    given=lambda one: {"ids": one.case.federation.data.ids},
    finish=check_arrivals,
)


ORIGINAL = {
    "constant": {},
    "poly": {"decay_rate": 0.9},
    "hinge": {"decay_rate": 3.0, "decay_start": 1.0},
}


@pytest.mark.parametrize("decay", ORIGINAL)
def test_decay_of_the_original_mode(decay):
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
