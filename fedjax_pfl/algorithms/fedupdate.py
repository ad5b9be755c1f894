"""Improving Federated Learning Personalization via Model Agnostic Meta Learning.

Yihan Jiang, Jakub Konečný, Keith Rush, Sreeram Kannan. 2019. https://arxiv.org/abs/1909.12488
"""

from dataclasses import replace

import jax.numpy as jnp

from fedjax_pfl.aggregation import mixing
from fedjax_pfl.core.algorithm import Algorithm
from fedjax_pfl.core.algorithm_registry import algorithm
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.structs import Broadcast, per_client, per_server, static, struct
from fedjax_pfl.utils.typing import Model, Stack


@struct
class State:
    server: Model = per_server()
    models: Stack = per_client()


@algorithm("fedupdate")
class FedUpdate(Algorithm):
    """FedAvg, then one step of every client on the averaged model, as SPFL's paper runs it.

    "Personalized Heterogeneous FL with Gradient Similarity" (submitted to ICLR 2022) has FedUpdate
    as a baseline. The fine-tuned model is scored, and the client's next round begins with it, as in
    that paper's code. Jiang et al. themselves fine-tune a copy for evaluation only.

    Attributes:
      fine_tune_steps: minibatch steps on the averaged model; with 0 this is FedAvg.
      discard_fine_tuned: begin the next round from the averaged model instead.
    """

    batch_norm = "shared"
    sees = "sums"

    fine_tune_steps: int = static(default=1)
    discard_fine_tuned: bool = static(default=False)

    def validate(self):
        require(self.fine_tune_steps >= 0, "fine_tune_steps", self.fine_tune_steps, "at least 0")

    def schedules(self, federation):
        return federation.schedule, replace(federation.schedule, steps=self.fine_tune_steps)

    def init(self, ctx):
        model = ctx.initial_model()
        return State(model, ctx.replicate(model))

    def round(self, ctx, state):
        held = ctx.cohort.gather(state.models)
        begin = self._averaged(ctx, state, held) if self.discard_fine_tuned else held
        trained, cohort, loss = ctx.train(begin)
        sent = ctx.upload(trained, Broadcast(state.server))
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        server = mixing.weighted_sum(weights, sent, onto=state.server)
        averaged = ctx.average(weights, sent, onto=trained)
        _, steps = self.schedules(ctx.federation)
        tuned, cohort, _ = ctx.train(averaged, cohort, purpose="update", schedule=steps)
        state = State(server, cohort.scatter(state.models, tuned))
        return state, ctx.record(cohort, clients={"train_loss": loss}, mixing=weights)

    def _averaged(self, ctx, state, held):
        """The server's shared leaves with each member's own private ones."""
        one = trees.replicate(state.server, 1)
        return ctx.average(jnp.ones((1,)), one, onto=held)

    def models(self, ctx, state, rows):
        named = {"personalized": trees.take(state.models, rows)}
        if ctx.plan.all_shared:
            named["global"] = Broadcast(state.server)
        return named
