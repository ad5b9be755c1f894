"""Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.

Jianyu Wang, Qinghua Liu, Hao Liang, Gauri Joshi, H. Vincent Poor. NeurIPS 2020.
https://arxiv.org/abs/2007.07481
"""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, mixing, training
from fedjax_pfl.algorithms.fedprox import FedProx


@core.algorithm("fednova")
class FedNova(FedProx):
    """FedAvg of updates that are divided by the clients' numbers of effective local steps.

    w <- w + (sum_i p_i b_i) sum_i p_i (w_i - w) / a_i. a_i is the path of client i's local
    optimizer along a constant gradient of 1, in learning rates: the number of its steps with plain
    SGD, more with momentum, less with a proximal term. b_i is a_i without the term. Clients that
    take more steps therefore count no more than their samples.

    A client without a step contributes nothing. Running statistics of normalization layers are
    averaged with weights proportional to p_i / a_i.

    Attributes:
      proximal_weight: mu, weight of FedProx's proximal term.
      slow_fraction: fraction of slow members per round, as in FedProx.
    """

    aggregator_replaces = "nothing"  # the length of the server's step depends on all members

    proximal_weight: float = 0.0

    def check(self, federation):
        super().check(federation)
        optimizer = federation.training.make_optimizer()
        if not isinstance(optimizer, training.SGD):
            raise core.InputError(
                "fednova counts the effective steps of SGD, and the local optimizer is another "
                "one: leave optimizer out."
            )
        if optimizer.momentum and federation.training.keep_optimizer_state:
            raise core.InputError(
                "fednova counts effective steps from a momentum of 0: leave keep_optimizer_state "
                "out."
            )

    def remarks(self, federation):
        return [
            note
            for note in super().remarks(federation)
            if not note.startswith("proximal_weight is 0")
        ]

    def weigh(self, ctx, state, sent):
        return mixing.normalize(self.normalized(ctx, sent.cohort)[0]), state

    def server_update(self, ctx, state, mean, weights, used):
        rates, steps = self.normalized(ctx, used.cohort)
        scale = steps * jnp.sum(rates)
        params = jax.tree.map(
            lambda old, new: old + (scale * (new - old)).astype(old.dtype),
            state.server["params"],
            mean["params"],
        )
        return super().server_update(ctx, state, {**mean, "params": params}, weights, used)

    def normalized(self, ctx, cohort):
        """Return (p_i / a_i of the members [M], sum_i p_i b_i)."""
        shares = mixing.by_size(ctx.sizes(), cohort.mask)
        with_pull, without = self.effective_steps(ctx, cohort.steps)
        return mixing.ratio(shares, with_pull), jnp.sum(shares * without)

    def effective_steps(self, ctx, taken):
        """Return (a_i, b_i) of members that took so many steps, [2, M]."""
        federation = ctx.federation
        optimizer = federation.training.make_optimizer()
        most = int(federation.schedule.total_steps(federation.data.train.capacity))
        pull = jnp.stack(
            [ctx.learning_rate * self.proximal_weight, jnp.zeros_like(ctx.learning_rate)]
        )

        def step(carry, _):
            velocity, length = carry
            gradient = 1 - pull * length
            velocity = optimizer.momentum * velocity + gradient
            moved = gradient + optimizer.momentum * velocity if optimizer.nesterov else velocity
            return (velocity, length + moved), length + moved

        zero = jnp.zeros_like(pull)
        _, lengths = lax.scan(step, (zero, zero), length=most)
        return jnp.concatenate([zero[None], lengths])[taken].T
