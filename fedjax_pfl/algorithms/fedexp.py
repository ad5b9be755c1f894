"""FedExP: Speeding Up Federated Averaging via Extrapolation.

Divyansh Jhunjhunwala, Shiqiang Wang, Gauri Joshi. ICLR 2023. https://arxiv.org/abs/2301.09604
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, similarity
from fedjax_pfl.algorithms import fedavg


@core.struct
class State(fedavg.State):
    rate: Any = core.per_server()  # eta_g of the last round, []
    previous: Any = core.per_server()  # parameters before the last round; only with average_last


@core.algorithm("fedexp")
class FedExP(fedavg.Weighted):
    """FedAvg whose server takes a longer step where the clients' updates point apart.

    w <- w + eta_g D with D = sum_i p_i d_i, d_i = w_i - w and
    eta_g = max(1, sum_i p_i |d_i|^2 / (2 (|D|^2 + epsilon))).

    The step size is that of extrapolated projections onto convex sets, a set being the minima of a
    client's loss. As iterates oscillate, the model in use is the average of the last two; training
    continues from the last. Running statistics of normalization layers are averaged and neither
    extrapolated nor averaged over rounds.

    Attributes:
      epsilon: bounds eta_g where updates cancel.
      average_last: use the average of the last two models; otherwise the last.
      weighting: p_i, by "size" (the authors' code), or "uniform" (the paper).
    """

    server_needs = "models"  # for the sums of p_i d_i and p_i |d_i|^2
    aggregator_replaces = "nothing"  # eta_g depends on sums without a rule

    epsilon: float = core.number(default=1e-3, allowed="at least 0")
    average_last: bool = core.static(default=True)
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def init(self, ctx):
        start = super().init(ctx)
        previous = start.server["params"] if self.average_last else None
        return State(**vars(start), rate=jnp.ones((), ctx.dtype), previous=previous)

    def round(self, ctx, state):
        after, record = super().round(ctx, state)
        assert isinstance(after, State)
        return after, replace(record, scalars={**record.scalars, "server_rate": after.rate})

    def weigh(self, ctx, state: State, sent):
        weights, _ = super().weigh(ctx, state, sent)
        uploads, _ = ctx.plan.split(sent.models)
        updates = jax.tree.map(jnp.subtract, uploads["params"], state.server["params"])
        zero = jax.tree.map(jnp.zeros_like, state.server["params"])
        mean = jax.tree.map(lambda x: x[None], mixing.weighted_sum(weights, updates, onto=zero))
        spread = jnp.sum(weights * similarity.squared_norms(updates))
        length = similarity.squared_norms(mean)[0] + self.epsilon
        rate = jnp.maximum(1, mixing.ratio(spread, 2 * length))
        return weights, replace(state, rate=rate.astype(state.rate.dtype))

    def server_update(self, ctx, state: State, mean, weights, used):
        old = state.server["params"]
        params = jax.tree.map(
            lambda w, m: w + (state.rate * (m - w)).astype(w.dtype), old, mean["params"]
        )
        if self.average_last:
            arrived = ctx.arrived(weights)
            kept = jax.tree.map(lambda w, p: jnp.where(arrived, w, p), old, state.previous)
            state = replace(state, previous=kept)
        return super().server_update(ctx, state, {**mean, "params": params}, weights, used)

    def models(self, ctx, state: State, rows):
        if self.average_last:
            params = jax.tree.map(lambda a, b: (a + b) / 2, state.server["params"], state.previous)
            state = replace(state, server={**state.server, "params": params})
        return super().models(ctx, state, rows)
