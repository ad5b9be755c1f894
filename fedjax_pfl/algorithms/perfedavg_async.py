"""Personalized Heterogeneous FL with Gradient Similarity: Per-FedAvg beside PLGA, in Table 2.

Anonymous authors, submitted to ICLR 2022. https://openreview.net/forum?id=c4iTLTkpY5

The paper credits the row to
Alireza Fallah, Aryan Mokhtari, Asuman Ozdaglar: Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach. NeurIPS 2020. https://arxiv.org/abs/2002.07948
"""

import jax.numpy as jnp

from fedjax_pfl import core, mixing
from fedjax_pfl.algorithms.asynchronous import FedAvgAsync, take_turn


@core.struct
class State:
    server: core.Model = core.per_server()
    trained: core.Stack = core.per_client()  # each client's last trained model
    # its last upload that arrived; at first the initial model
    arrived: core.Stack = core.per_client()
    finite: core.PerClient = core.per_client()  # whether the last training stayed finite, bool [N]


@core.algorithm("perfedavg_async")
class PerFedAvgAsync(FedAvgAsync):
    """Per-FedAvg (Async) of PLGA's Table 2: w <- sum_i (n_i / n) of all clients' last uploads.

    Late uploads are unchanged and arrive in cycles of d + 1 rounds, independent of the federation's
    schedule. Before its first upload a client counts with the initial model. As in
    `perfedavg_spfl`, the local update is two SGD steps on each minibatch.

    Attributes:
      local_updates: steps on each minibatch, each with its own gradient.
    """

    row_stochastic = False  # the rest of a row is the weight of earlier uploads

    local_updates: int = core.static(default=2, allowed="in [1, 10]")

    def init(self, ctx):
        model = ctx.initial_model()
        stack = ctx.replicate(model)
        return State(model, stack, stack, jnp.ones((ctx.num_clients,), bool))

    def turn(self, ctx, state):
        cohort = ctx.cohort.on_schedule(ctx.t, "paper")
        return take_turn(ctx, state, cohort, updates_per_batch=self.local_updates)

    def round(self, ctx, state):
        turn, finite = self.turn(ctx, state).sound(state.finite)
        cohort = turn.cohort
        trained = cohort.scatter(state.trained, turn.trained, where=turn.starts)
        held, arriving = core.Broadcast(state.server), cohort.masked(turn.arrives)
        sent = ctx.upload(cohort.gather(trained), held, cohort=arriving)
        arrived = cohort.scatter(state.arrived, sent, where=turn.arrives)
        sizes = ctx.federation.data.train.size
        shares = mixing.by_size(sizes, (sizes > 0) & ctx.cohort_of().mask)
        mean = mixing.weighted_sum(shares, arrived, onto=state.server)
        server = self.moved(ctx, state.server, mean)
        weights = jnp.where(turn.arrives, cohort.gather(shares), 0)
        return State(server, trained, arrived, finite), turn.record(ctx, weights)
