"""Federated Mutual Learning.

Tao Shen, Jie Zhang, Xinkang Jia, Fengda Zhang, Gang Huang, Pan Zhou, Kun Kuang, Fei Wu, Chao Wu.
2020. https://arxiv.org/abs/2006.16765
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.own_models import State
from fedjax_pfl.algorithms.ditto import Both


@core.algorithm("fml")
class FML(fedavg.Weighted):
    """FML: FedAvg of meme models, which learn from own models and teach them.

    On each minibatch, both from the values before it, the own model v and the meme model w step on

      alpha CE(v) + (1 - alpha) KL(p_w || p_v)    kept
      beta CE(w) + (1 - beta) KL(p_v || p_w)      sent, and averaged as by FedAvg

    p are softmax outputs in training mode, and means over the minibatch; the other model is
    constant in each term. All own models begin at the common initial model. A client of which
    either model diverges keeps neither.

    Attributes:
      alpha: weight of the cross-entropy of own models; 1: they are trained locally.
      beta: weight of the cross-entropy of meme models; 1: they are FedAvg's.
      weighting: of the average, by "size", or "uniform" (PFLlib).
    """

    needs_classes = True

    alpha: float = 0.5
    beta: float = 0.5
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def validate(self):
        core.require(0 <= self.alpha <= 1, "alpha", self.alpha, "in [0, 1]")
        core.require(0 <= self.beta <= 1, "beta", self.beta, "in [0, 1]")

    def gradients_per_batch(self):
        return 2

    def remarks(self, federation):
        notes = "alpha is 1: what is scored was trained locally"
        return [*super().remarks(federation), *[notes] * (self.alpha == 1)]

    def init(self, ctx):
        return State(**vars(super().init(ctx)), own=ctx.replicate(ctx.initial_model()))

    def local_update(self, ctx, state: State, received, **options):
        if isinstance(received, core.Broadcast):
            received = trees.replicate(received.model, ctx.cohort.size)
        return self.train_both(ctx, ctx.cohort.gather(state.own), received, **options)

    def train_both(self, ctx, own, shared, **options) -> Both:
        """Run the cohort's local steps from v_i and w_i, [M, ...]."""
        task, cohort = ctx.federation.task, ctx.cohort

        def taught(weight):
            def term(params, batch, teacher, client, key):
                seen = task.outputs(teacher, batch.inputs, True, key, batch.valid)
                wanted = jax.nn.log_softmax(seen.logits)
                apart = divergence(wanted, jax.nn.log_softmax(batch.logits), batch.valid)
                return (1 - weight) * (apart - task.mean_loss(batch.logits, batch))

            return ctx.sgd_step(extra_loss=term)

        own_step, shared_step = taught(self.alpha), taught(self.beta)

        def step(carry, batch, rng, broadcast, client):
            v, w = carry
            new_v = own_step(v, batch, rng, w.model, client)
            return new_v, shared_step(w, batch, rng, v.model, client)

        begin = own_step.begin_all(own), shared_step.begin_all(shared)
        (v, w), finite, steps = ctx.run_clients(step, begin, **options)
        cohort = cohort.keep(finite, 2 * steps)
        return Both(w.model, cohort, w.loss / jnp.maximum(steps, 1), own=v.model)

    def server_update(self, ctx, state: State, mean, weights, sent: Both):
        after = super().server_update(ctx, state, mean, weights, sent)
        return replace(after, own=sent.cohort.scatter(state.own, sent.own))

    def models(self, ctx, state: State, rows):
        return super().models(ctx, state, rows) | {"personalized": trees.take(state.own, rows)}

    def new_client_start(self, ctx, state):
        return self.servers_model(state)

    def personalize(self, ctx, state, new_clients):
        """Train both models for a round from the server's and return the own ones."""
        new = replace(new_clients, cohort=new_clients.everyone())
        start = new.replicate(self.new_client_start(ctx, state))
        return self.train_both(new, start, start, purpose="personalize", cursor=None).own


def divergence(wanted: jax.Array, learnt: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the mean over valid rows of KL(wanted || learnt) of log-probabilities [B, C]."""
    losses = jnp.sum(jnp.exp(wanted) * (wanted - learnt), axis=1)
    return jnp.sum(jnp.where(valid, losses, 0)) / jnp.maximum(jnp.sum(valid), 1)
