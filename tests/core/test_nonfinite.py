"""Values that aggregation makes non-finite, and updates too large for any aggregation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.results.notes import row_remarks, scored_clients
from fedjax_pfl.testing import check_algorithm
from fedjax_pfl.testing.toys import toy_for
from fedjax_pfl.utils import trees


class LostModels(pfl.core.ALGORITHMS["local"]):
    """Local training whose mixing yields NaN for client 2, and sound models for the rest."""

    def round(self, ctx, state):
        new, record = super().round(ctx, state)
        factor = jnp.where(ctx.cohort.ids == 2, jnp.nan, 1)
        mixed = jax.tree.map(lambda leaf: leaf * trees.expand_to(leaf, factor), new.models)
        return replace(state, models=ctx.cohort.scatter(state.models, mixed)), record


class LostServer(pfl.core.ALGORITHMS["fedavg"]):
    """FedAvg whose server turns NaN in the third round."""

    def round(self, ctx, state):
        new, record = super().round(ctx, state)
        factor = jnp.where(ctx.t == 2, jnp.nan, 1)
        return replace(new, server=jax.tree.map(lambda leaf: factor * leaf, new.server)), record


def simulated(algorithm, rounds=4, **options):
    federation = toy_for(algorithm, dtype="float32", **options)
    return pfl.simulate(algorithm, federation, rounds, chunk=2)


@pytest.mark.costly
def test_lost_values_of_a_client_are_recorded_apart_from_divergence(made):
    result = simulated(made(LostModels))
    assert not result.diverged()
    assert result.nonfinite() == [(0, 0, t, 2) for t in (1, 2, 3, 4)]
    summary = result.summary()
    assert summary["nonfinite_clients"] == [2]
    assert (
        "the aggregated values of client 2 were not finite and were not used, first in round 1"
        in summary["remarks"]
    )
    assert "client 2" in repr(result) and "not finite" in repr(result)
    assert np.isfinite(result.values()[0, 0, -1, 2])  # of the model that it has kept


@pytest.mark.costly
def test_the_suite_refuses_lost_values(made):
    with jax.enable_x64(True), pytest.raises(AssertionError, match=r"clients \[2\] trained, and"):
        check_algorithm(made(LostModels), only="stragglers", show=None)


@pytest.mark.costly
def test_a_lost_server_ends_the_claim_of_a_score(made):
    result = simulated(made(LostServer))
    assert result.server_nonfinite() == [(0, 0, 3), (0, 0, 4)]
    curve = result.curve()[0, 0]
    assert np.isfinite(curve[:2]).all() and np.isnan(curve[2:]).all()
    summary = result.summary()
    assert np.isnan(summary["accuracy"]["final_mean"])  # no earlier round stands in for the last
    remark = "the server's state is not finite from round 3 on, in seed 0"
    assert remark in row_remarks(result)
    assert remark in repr(result)
    assert "| - |" in result.table()


@pytest.mark.costly
@pytest.mark.parametrize("name", pfl.core.ALGORITHMS)
def test_a_huge_finite_update_leaves_the_others_unharmed(name):
    algorithm = pfl.make_algorithm(name)
    own = {} if algorithm.batch_norm == "local" else {"model": MLP(3, (5,))}
    result = simulated(algorithm, diverging=1, magnitude=1e23, **own)
    # One of FedEM's learners predicts these samples, so the client takes no step.
    lost = set() if name == "fedem" else {1}
    assert {client for *_, client in result.diverged()} == lost
    assert not result.nonfinite() and not result.server_nonfinite()
    others = [n for n in scored_clients(result) if n != 1]  # some algorithms serve one client
    assert others and np.isfinite(result.scores["personalized/test/loss"][0, 0, -1, others]).all()


def test_squares_fit():
    like = {"w": jnp.zeros((10,)), "steps": jnp.arange(3)}
    largest = float(jnp.finfo(jnp.float32).max)
    limit = (largest / 640) ** 0.5
    for value, fits in [(limit * 0.99, True), (limit * 1.01, False), (np.nan, False)]:
        assert bool(trees.squares_fit({**like, "w": like["w"].at[3].set(value)})) is fits
    assert bool(trees.squares_fit({"steps": jnp.arange(3)}))
    assert bool(trees.squares_fit({"half": jnp.full((4,), 6e4, jnp.float16)}))
    assert not bool(trees.squares_fit({"half": jnp.full((4,), jnp.inf, jnp.float16)}))
