"""Running statistics that stay with their clients, beside servers that have other models."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.common.best_model import best_fitting
from fedjax_pfl.testing.toys import assert_close, toy_federation
from fedjax_pfl.training.scoring import score
from fedjax_pfl.utils import trees
from tests.algorithms.norms import ConvNorm

pytestmark = pytest.mark.costly  # tests/models/test_normalization.py has the quick ones


def everybody(ids):
    return jnp.ones((len(ids), len(ids)))


AS_FEDAVG = {
    "ifca": {"clusters": 1},
    "cfl": {"mean_below": 0.0, "max_clusters": 2, "best_of_tree": True},
    "sfl": {"relation": everybody, "detached": True, "layers": 1},
}


def clients_and_new_ones():
    """Two equal clients and a new one, of a network with batch normalization."""
    sizes = ((4, 4, 4), (2, 2, 2))
    whole = toy_federation(*sizes, model=ConvNorm(), batch_norm="affine_shared")
    return pfl.split_new_clients(whole, 1)


def context(federation, t=0):
    """A round of all clients."""
    ctx = pfl.Context(federation, jax.random.key(3), jnp.int32(t), jnp.int32(2), None)
    return replace(ctx, cohort=ctx.cohort_of())


def two_rounds(name):
    """(the clients' models by name, the new client's) after two rounds."""
    algorithm = pfl.make_algorithm(name, AS_FEDAVG.get(name, {}))
    left, new = map(algorithm.prepare, clients_and_new_ones())

    @jax.jit
    def run():
        state = algorithm.init(context(left))
        for t in range(2):
            state, _ = algorithm.round(context(left, t), state)
        named = algorithm.models(context(left, 1), state, jnp.arange(2))
        theirs = context(new, 1).of_new_clients()
        return named, algorithm.personalize(context(left, 1), state, theirs)

    return run()


@pytest.fixture(scope="module")
def fedavg():
    with jax.enable_x64(True):
        return two_rounds("fedavg")


@pytest.mark.parametrize("name", AS_FEDAVG)
def test_private_statistics_where_the_algorithm_is_fedavg(name, fedavg):
    (wanted, wanted_new), (named, new) = fedavg, two_rounds(name)
    mean = wanted["personalized"]["batch_stats"]["bn"]["mean"]
    assert abs(mean[0] - mean[1]).max() > 1e-3
    assert "global" not in named
    for models in named.values():
        assert_close(models, wanted["personalized"], name)
    assert_close(new, wanted_new, "new client")


def test_best_fitting_under_private_statistics():
    federation = pfl.make_algorithm("ifca").prepare(clients_and_new_ones()[0])
    ctx = context(federation)
    first, other = ctx.initial_model(), ctx.initial_model("another")
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, other)
    scales = jnp.array([1.0, 5.0])
    _, own = ctx.plan.split(ctx.replicate(first))
    own = jax.tree.map(lambda leaf: 0.3 + leaf * trees.expand_to(leaf, scales), own)
    choice, loss = jax.jit(lambda: best_fitting(ctx, models, own, split="train"))()
    rows = jnp.arange(2)
    losses = [
        score(federation, ctx.plan.with_private(ctx.replicate(model), own), rows, "train")[1] / 4
        for model in (first, other)
    ]
    np.testing.assert_array_equal(choice, np.argmin(losses, axis=0))
    np.testing.assert_allclose(loss, np.min(losses, axis=0), 1e-9)
