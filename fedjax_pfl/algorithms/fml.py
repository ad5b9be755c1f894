"""Federated Mutual Learning.

Tao Shen, Jie Zhang, Xinkang Jia, Fengda Zhang, Gang Huang, Pan Zhou, Kun Kuang, Fei Wu, Chao Wu.
2020. https://arxiv.org/abs/2006.16765
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms.common.mutual_distillation import MutualDistillation, divergence
from fedjax_pfl.algorithms.ditto import Both
from fedjax_pfl.algorithms.fedavg import Weighted


@core.algorithm("fml")
class FML(MutualDistillation, Weighted):
    """FML: FedAvg of meme models, which learn from own models and teach them.

    On each minibatch, both from the values before it, the own model v and the meme model w step on

      alpha CE(v) + (1 - alpha) KL(p_w || p_v)    kept
      beta CE(w) + (1 - beta) KL(p_v || p_w)      sent, and averaged as by FedAvg

    p are softmax outputs in training mode. CE and KL are means over the minibatch, and the other
    model is constant in each term. All own models begin at the common initial model. A client of
    which either model diverges keeps neither.

    Attributes:
      alpha: weight of the cross-entropy of own models; 1: they are trained locally.
      beta: weight of the cross-entropy of meme models; 1: they are FedAvg's.
      weighting: of the average, by "size", or "uniform" (PFLlib).
    """

    needs_classes = True

    alpha: float = core.number(default=0.5, allowed="in [0, 1]")
    beta: float = core.number(default=0.5, allowed="in [0, 1]")
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def remarks(self, federation):
        notes = "alpha is 1: what is scored was trained locally"
        return [*super().remarks(federation), *[notes] * (self.alpha == 1)]

    def train_both(self, ctx, own, shared):
        task = ctx.federation.task

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
        (v, w), finite, steps = ctx.run_clients(step, begin)
        cohort = ctx.cohort.mark_diverged(finite, 2 * steps)
        return Both(w.model, cohort, w.loss / jnp.maximum(steps, 1), own=v.model)
