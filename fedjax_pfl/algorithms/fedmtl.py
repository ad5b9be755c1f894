"""Federated Multi-Task Learning.

Virginia Smith, Chao-Kai Chiang, Maziar Sanjabi, Ameet Talwalkar. NIPS 2017.
https://arxiv.org/abs/1705.10467
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, training, trees


@core.struct
class State:
    # w_i: each client's last trained model, of which the server knows
    models: core.Stack = core.per_client()


@core.algorithm("fedmtl")
class FedMtl(core.Algorithm):
    """Federated multi-task learning of networks, with mean regularization.

    Each client has a model w_i of its own. With W = [w_1 ... w_m] of the m members of a round,
    they descend

        f_i(w_i) + lambda_1 tr(W Omega W^T) + lambda_2 |W|^2,  Omega = (I - 1 1^T / m)^2,

    in w_i, while the other columns stay as they were before the round. The trace is
    sum_j |w_j - mean of W|^2, so w_i is pulled to the mean o_i of the other members, by
    lambda_1 (1 - 1/m) |w_i - o_i|^2. The paper's MOCHA solves this for convex losses, by dual
    coordinate ascent, and learns other relations Omega.

    Attributes:
      coupling: lambda_1; -1 is 10^-(k + 1), where k is the number of digits of the model's size.
      ridge: lambda_2; -1 is the same.
    """

    aggregator_replaces = "matrix"

    coupling: float = -1.0
    ridge: float = -1.0

    def validate(self):
        for name in ("coupling", "ridge"):
            value = getattr(self, name)
            core.require(
                value == -1 or value >= 0, name, value, "at least 0, or -1 for 10^-(k + 1)"
            )

    def check(self, federation):
        if not any(federation.plan.shared):
            raise core.InputError("fedmtl relates what clients share, and share is 'none'.")

    def remarks(self, federation):
        notes = super().remarks(federation)
        if self.coupling < 0:
            usual = usual_strength(federation.plan)
            notes.append(f"coupling is {usual:.0e}, by the model's size: nearly trained locally")
        elif self.coupling == 0:
            notes.append("coupling is 0: trained locally")
        return notes

    def init(self, ctx):
        return State(ctx.replicate(ctx.initial_model()))

    def round(self, ctx, state):
        own, mask = ctx.cohort.gather(state.models), ctx.cohort.mask
        others = mask & ~jnp.eye(len(mask), dtype=bool)
        near = ctx.mix(mixing.normalize(others.astype(ctx.dtype)), own, onto=own)
        trained, cohort, loss = ctx.train(
            own, extra_loss=self.regularizer(ctx, jnp.sum(mask)),
            operands=ctx.plan.trainable_shared(near)["params"],
        )  # fmt: skip
        sent = ctx.upload(trained, own, cohort=cohort)
        return State(cohort.scatter(state.models, sent)), ctx.record(
            cohort, clients={"train_loss": loss}
        )

    def regularizer(self, ctx, members) -> Callable[..., jax.Array]:
        """Return the terms of lambda_1 and lambda_2 for one of so many members."""
        usual = usual_strength(ctx.plan)
        coupling, ridge = (
            2 * jnp.where(jnp.asarray(value) < 0, usual, value)
            for value in (self.coupling, self.ridge)
        )
        pull = training.proximal(coupling * (1 - 1 / jnp.maximum(members, 1)))
        decay = training.proximal(ridge)

        def terms(params, batch, broadcast, client):
            zero = jax.tree.map(jnp.zeros_like, client.operand)
            near = pull(params, batch, client.operand, client)
            return near + decay(params, batch, zero, client)

        return terms

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}

    def personalize(self, ctx, state, new_clients):
        """Train new clients for a round, each as one more member beside all clients."""
        start = self.new_client_start(ctx, state)
        count = new_clients.num_clients
        return super().personalize(
            ctx, state, new_clients,
            extra_loss=self.regularizer(ctx, ctx.num_clients + 1),
            operands=trees.replicate(ctx.plan.trainable_shared(start)["params"], count),
        )  # fmt: skip


def usual_strength(plan: core.LeafPlan) -> float:
    """Return 10^-(k + 1) for k digits of the number of shared parameters."""
    size = plan.shared_block_sizes().sum()
    return 10.0 ** -(int(math.log10(max(size, 1)) + 1) + 1)
