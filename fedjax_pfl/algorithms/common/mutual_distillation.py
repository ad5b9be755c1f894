"""Mutual distillation between each client's own model and its copy of the server's."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.own_models import State
from fedjax_pfl.algorithms.ditto import Both


class MutualDistillation(fedavg.FedAvg):
    """FedAvg beside own models; in each step the two models of a client learn from each other.

    A subclass defines `train_both`. `own` of the state begins at the common initial model.
    """

    def train_both(self, ctx: core.Context, own: core.Tree, shared: core.Stack) -> Both:
        """Run the cohort's local steps from v_i, in `own`, and w_i, [M, ...]."""
        raise NotImplementedError

    def init(self, ctx):
        return State(**vars(super().init(ctx)), own=ctx.replicate(ctx.initial_model()))

    def local_update(self, ctx, state: State, received):
        if isinstance(received, core.Broadcast):
            received = trees.replicate(received.model, ctx.cohort.size)
        return self.train_both(ctx, ctx.cohort.gather(state.own), received)

    def server_update(self, ctx, state: State, mean, weights, used: Both):
        after = super().server_update(ctx, state, mean, weights, used)
        return replace(after, own=used.cohort.scatter(state.own, used.own))

    def models(self, ctx, state: State, rows):
        return super().models(ctx, state, rows) | {"personalized": trees.take(state.own, rows)}

    def new_client_start(self, ctx, state):
        return self.servers_model(state)

    def personalize(self, ctx, state, new_clients):
        """Train both models for a round from the server's and return the own ones."""
        start = new_clients.replicate(self.new_client_start(ctx, state))
        return self.train_both(new_clients, start, start).own


def divergence(wanted: jax.Array, learnt: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the mean over valid rows of KL(wanted || learnt) of log-probabilities [B, C]."""
    losses = jnp.sum(jnp.exp(wanted) * (wanted - learnt), axis=1)
    return jnp.sum(jnp.where(valid, losses, 0)) / jnp.maximum(jnp.sum(valid), 1)
