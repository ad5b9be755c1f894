"""FedAvg's rounds for a single client, Alice (WAFFLE, Weight Erosion)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, similarity, trees
from fedjax_pfl.algorithms.fedavg import FedAvg


class ForAlice(FedAvg):
    """FedAvg's rounds for one client, a mixin that precedes a subclass of `FedAvg`.

    Its field `alice` is the permanent id of this client. No client trains in a round
    without her. If she diverges, no update is used.
    """

    alice: int

    def check(self, federation):
        super().check(federation)
        core.require_whole_models(self, federation)
        ids = np.asarray(federation.data.ids)
        core.require(
            self.alice in ids, "alice", self.alice, f"a client in {ids.min()}..{ids.max()}"
        )

    def served_clients(self, ctx):
        return ctx.ids == self.alice

    def round(self, ctx, state):
        return super().round(replace(ctx, cohort=self.admitted(ctx, ctx.cohort)), state)

    def admitted(self, ctx, cohort):
        return if_present(cohort, cohort.ids == self.alice)

    def record(self, ctx, trained, weights, **noted):
        return super().record(ctx, trained, weights, weight=weights, **noted)

    def models(self, ctx, state, rows):
        return {"personalized": self.received(state, rows)}


def if_present(cohort: core.Cohort, is_alice: jax.Array) -> core.Cohort:
    """Return the cohort, with an empty mask if Alice is not in it; `is_alice` is [M]."""
    if cohort.complete:
        return cohort
    return cohort.masked(cohort.mask & jnp.any(is_alice & cohort.mask))


def summed_gradients(ctx, means):
    """Return the sum of the raw gradients of the local steps, from their means [M, ...]."""
    steps = ctx.federation.schedule.total_steps(ctx.sizes())
    return jax.tree.map(lambda g: g * trees.expand_to(g, steps).astype(g.dtype), means)


def squared_distances_to_alice(stack, is_alice: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (|s_i - s_alice|^2 [M], |s_alice|^2 [1]) of a stack [M, ...]."""
    hers = jax.tree.map(lambda leaf: leaf[jnp.argmax(is_alice)][None], stack)
    apart = similarity.squared_norms(jax.tree.map(jnp.subtract, stack, hers))
    return jnp.where(is_alice, 0, apart), similarity.squared_norms(hers)
