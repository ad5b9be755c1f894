"""Exploiting Shared Representations for Personalized Federated Learning.

Liam Collins, Hamed Hassani, Aryan Mokhtari, Sanjay Shakkottai. ICML 2021.
https://arxiv.org/abs/2102.07078
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, training, trees
from fedjax_pfl.algorithms.fedper import PartlyShared


@core.algorithm("fedrep")
class FedRep(PartlyShared):
    """FedRep: each client trains its head h_i on the received body, then the body under that head.

    phi <- sum_i p_i phi_i; heads are neither sent nor averaged. Both phases begin with a new
    optimizer, and running statistics move in both. The body is trained for the federation's local
    epochs or steps.

    Attributes:
      head_epochs: tau, epochs of the head in each round: 10 in the authors' code, 1 in PFLlib.
      weighting: p_i "uniform" over the members (Alg. 1, and the authors' code on CIFAR and MNIST),
        or by "size" (PFLlib).
      final_head_epochs: epochs of a copy's head before it is scored after the last round. If set,
        models without them are scored in every round as "before".
    """

    share = "body"

    head_epochs: int = core.static(default=10, allowed="at least 0")
    weighting: Literal["size", "uniform"] = core.static(default="uniform")
    final_head_epochs: int = core.static(default=0, allowed="at least 0")

    def check(self, federation):
        super().check(federation)
        plan = federation.plan
        if len(plan.layers) == 1:
            raise core.InputError(
                "fedrep learns a body under heads, and this network is only a head."
            )
        if any(plan.frozen):
            path = plan.paths[plan.frozen.index(True)]
            raise core.InputError(f"fedrep trains head and body in turn, and {path} is frozen.")

    def has_step(self, federation):
        sizes = np.asarray(federation.data.train.size).astype(np.int64)
        some = self.head_schedule(federation).total_steps(sizes) > 0
        return some | (federation.steps() > 0)

    def head_schedule(self, federation):
        """Return the schedule of the head, of no step without `head_epochs`."""
        return replace(federation.schedule, epochs=self.head_epochs, steps=None)

    def local_update(self, ctx, state, received):
        head = self._head(ctx, received)
        body = jax.tree.map(lambda on: not on, head)
        models, cohort, loss = received, ctx.cohort, 0
        if self.head_epochs:
            models, cohort, loss = ctx.train(
                models,
                cohort,
                purpose="head",
                schedule=self.head_schedule(ctx.federation),
                trainable=head,
            )
        before = cohort.steps
        models, cohort, body_loss = ctx.train(models, cohort, trainable=body)
        part = before.astype(body_loss.dtype) / jnp.maximum(cohort.steps, 1)
        return core.Trained(models, cohort, part * loss + (1 - part) * body_loss)

    @staticmethod
    def _head(ctx, models):
        """Return the mask of the head's parameters, a tree of booleans."""
        model = models.model if isinstance(models, core.Broadcast) else models
        return ctx.plan.head_mask(model)["params"]

    def adaptation(self):
        if not self.final_head_epochs:
            return None
        return training.Adaptation(epochs=self.final_head_epochs, leaves="head", when="last")

    def models(self, ctx, state, rows):
        named = super().models(ctx, state, rows)
        return {**named, "before": named["personalized"]} if self.final_head_epochs else named

    def personalize(self, ctx, state, new_clients):
        """Train heads for new clients on the server's body, from the common initial head.

        Where the new clients' schedule counts steps, it replaces `head_epochs` (at least one).
        """
        _, private = ctx.plan.split(ctx.initial_model())
        start = core.Broadcast(trees.join(state.server, private))
        schedule = replace(new_clients.federation.schedule, epochs=max(self.head_epochs, 1))
        head = self._head(ctx, start)
        return new_clients.train(start, schedule=schedule, trainable=head).models
