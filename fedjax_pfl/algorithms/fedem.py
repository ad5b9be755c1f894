"""Federated Multi-Task Learning under a Mixture of Distributions.

Othmane Marfoq, Giovanni Neglia, Aurélien Bellet, Laetitia Kameni, Richard Vidal. NeurIPS 2021.
https://arxiv.org/abs/2108.10252
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, mixing, training, trees
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.frozen_networks import check_passes, passes

MIXTURE = "mixture"


@dataclass(frozen=True)
class Learners(core.WrappedTask):
    """Several models of one network, whose predictions are mixed.

    The leaves of all learners are stacks [K, ...] under the network's own paths. The weights are
    `MIXTURE`, [K], on which no gradient acts. Learner 0 is the network's own initial model, the
    others are independent draws.
    """

    count: int

    def init(self, key, inputs):
        drawn = [
            self.network.init(jax.random.fold_in(key, k) if k else key, inputs)
            for k in range(self.count)
        ]
        model = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
        return with_mixture(model, jnp.full((self.count,), 1 / self.count, self.dtype))

    def apply(self, model, inputs, *mode):
        logits, statistics = self.each(model, inputs, *mode)
        weights = mixing.normalize(lax.stop_gradient(model["params"][MIXTURE]))
        return core.Outputs(self.objective.mixed(logits, weights), statistics)

    def each(self, model, inputs, train, rng, valid) -> tuple[jax.Array, core.Tree]:
        """Return every learner's logits [K, B, ...] and changed statistics [K, ...]."""
        params = {name: part for name, part in model["params"].items() if name != MIXTURE}

        def one(known):
            k, learner = known
            key = None if rng is None else jax.random.fold_in(rng, k)
            out = self.network.outputs(learner, inputs, train, key, valid)
            return out.logits, out.statistics

        return lax.map(one, (jnp.arange(self.count), {**model, "params": params}))

    def losses_of_each(self, logits, labels) -> jax.Array:
        """Return the losses [K, B] of logits [K, B, ...]."""
        return jax.vmap(self.losses, (0, None))(logits, labels)

    def posterior(self, model, batch) -> jax.Array:
        """Return the probabilities [K, B] that a sample is of a learner's distribution."""
        logits, _ = self.each(model, batch.inputs, False, None, batch.valid)
        known = jnp.log(model["params"][MIXTURE])[:, None]
        return jax.nn.softmax(known - self.losses_of_each(logits, batch.labels), axis=0)


def with_mixture(model: Any, weights: jax.Array) -> Any:
    """Return models with other weights of the learners."""
    return {**model, "params": {**model["params"], MIXTURE: weights}}


@core.algorithm("fedem")
class FedEM(fedavg.FedAvg):
    """FedEM: K shared learners, which each client mixes with weights pi_i of its own.

    With the received learners w_k, l_k(s) the loss of w_k on sample s, and n_i samples:

      q_k(s) = pi_ik exp(-l_k(s)) / sum_j pi_ij exp(-l_j(s))      E-step
      pi_ik <- sum_s q_k(s) / n_i                                 M-step, kept by the client
      w_ik  <- local SGD from w_k on the losses weighted by q_k   M-step
      w_k   <- sum_i p_i w_ik                                     server

    A client predicts sum_k pi_ik p_k, with the probabilities p_k of the learners.

    Attributes:
      learners: K; 1: FedAvg.
      new_client_passes: E-steps of a new client, from equal weights; it trains no learner.
    """

    unprotected = ("mixture weights",)

    learners: int = core.static(default=3, allowed="at least 1")
    new_client_passes: int = core.static(default=1, allowed="at least 1")

    def check(self, federation):
        check_passes(self.name, federation, self.learners)

    def prepare(self, federation):
        if federation.same_initial_model and self.learners > 1:
            raise core.InputError(
                "fedem begins with different learners, but the initial model gives every "
                "parameter: leave some layer out of it, such as the head."
            )
        learners = federation.with_network(
            lambda task: Learners(
                task, self.learners, dtype=task.dtype, platform=task.platform,
                objective=task.objective,
            ),
            (MIXTURE,),
        )  # fmt: skip
        return super().prepare(learners)

    def local_update(self, ctx, state, received):
        own = ctx.cohort.gather(state.private)
        weights = self.mixtures(ctx, state.server, own)
        task: Any = ctx.federation.task

        def forward_pass(model, batch, rng, server, client):
            q = task.posterior(trees.join(server, client.operand), batch)
            logits, statistics = task.each(model, batch.inputs, True, rng, batch.valid)
            losses = q * task.losses_of_each(logits, batch.labels)
            count = jnp.maximum(jnp.sum(batch.valid, dtype=losses.dtype), 1)
            loss = jnp.sum(jnp.where(batch.valid, losses, 0)) / count
            mixed = task.objective.mixed(logits, mixing.normalize(model["params"][MIXTURE]))
            seen = training.ForwardedBatch(batch.inputs, batch.labels, batch.valid, mixed, None)
            return training.Forward(loss, {**model, **statistics}, seen)

        trained = super().local_update(
            ctx, state, received, forward=forward_pass, broadcast=state.server, operands=own
        )  # fmt: skip
        taken = passes(ctx.federation, self.learners) * trained.cohort.steps
        ctx.count_forward(taken + self.learners * ctx.sizes() * ctx.cohort.mask)
        return replace(trained, models=with_mixture(trained.models, weights))

    def mixtures(self, ctx, server, own) -> jax.Array:
        """Return pi, [M, K], after an E-step of the cohort; as before where it has no samples.

        Args:
          own: private leaves [M, ...], with the weights before it.
        """
        task: Any = ctx.federation.task
        before = own["params"][MIXTURE]

        def add(total, batch, rng, server, client):
            q = task.posterior(trees.join(server, client.operand), batch)
            return total + jnp.sum(jnp.where(batch.valid, q, 0), axis=1)

        once = ctx.federation.schedule.one_pass()
        total, *_ = ctx.run_clients(
            add, core.Broadcast(jnp.zeros_like(before[0])), purpose=MIXTURE, schedule=once,
            split=ctx.federation.data.train, broadcast=server, operands=own,
        )  # fmt: skip
        some = jnp.any(total > 0, axis=1, keepdims=True)
        return jnp.where(some, mixing.normalize(total).astype(before.dtype), before)

    def new_client_start(self, ctx, state):
        model = self.servers_model(state)
        return with_mixture(model, jnp.full_like(model["params"][MIXTURE], 1 / self.learners))

    def personalize(self, ctx, state, new_clients):
        """Return the server's learners with mixtures of the new clients."""
        server, private = ctx.plan.split(self.new_client_start(ctx, state))
        own: Any = new_clients.replicate(private)
        for _ in range(self.new_client_passes):
            own = with_mixture(own, self.mixtures(new_clients, server, own))
        return trees.assemble(server, own)
