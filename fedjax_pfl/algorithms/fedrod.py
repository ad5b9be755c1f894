"""On Bridging Generic and Personalized Federated Learning for Image Classification.

Hong-You Chen, Wei-Lun Chao. ICLR 2022. https://arxiv.org/abs/2107.00778
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, training, trees
from fedjax_pfl.algorithms import fedavg


@core.struct
class State(fedavg.State):
    trained: Any = core.per_client()  # what each client trained last; only with score_trained


@core.algorithm("fedrod")
class FedRod(fedavg.FedAvg):
    """FedRoD: a common generic predictor, and a personal head on its features per client.

    One forward pass serves two losses. The balanced softmax, the cross-entropy of g + log n_ic,
    trains body and generic head; n_ic are the client's training samples of class c, and a class
    that it lacks leaves the softmax. The cross-entropy of sg(g) + h_i(sg(features)) trains only the
    personal head h_i, which stays with its client.

    The authors published no code. As in PFLlib, h_i begins as a copy of the generic head, and
    models are scored after aggregation, before they are trained locally.

    Attributes:
      personal_weight: weight of the personal loss, which does not reach body and generic head: with
        SGD, the ratio of the personal head's rate to the others' (weight decay excepted).
      score_trained: also score the trained models before aggregation; the state then holds them.
    """

    needs_classes = True  # of the balanced softmax
    unprotected = ("the class counts of its loss",)

    personal_weight: float = core.number(default=1.0, allowed="at least 0")
    score_trained: bool = core.static(default=False)

    def prepare(self, federation):
        return super().prepare(federation.with_personal_head())

    def init(self, ctx):
        start = super().init(ctx)
        trained = ctx.replicate(ctx.initial_model()) if self.score_trained else None
        return State(**vars(start), trained=trained)

    def local_update(self, ctx, state, received):
        task: Any = ctx.federation.task  # of two heads, as `prepare` made it

        def forward_pass(model, batch, rng, broadcast, client):
            generic, personal, statistics, features = task.heads(
                model, batch.inputs, True, rng, batch.valid, detached=True
            )
            both = lax.stop_gradient(generic) + personal
            loss = task.mean_loss(generic + log_counts(client, generic.dtype), batch)
            loss += self.personal_weight * task.mean_loss(both, batch)
            seen = training.ForwardedBatch(batch.inputs, batch.labels, batch.valid, both, features)
            return training.Forward(loss, {**model, **statistics}, seen)

        return super().local_update(ctx, state, received, forward=forward_pass)

    def server_update(self, ctx, state: State, mean, weights, used):
        after = super().server_update(ctx, state, mean, weights, used)
        if not self.score_trained:
            return after
        return replace(after, trained=used.cohort.scatter(state.trained, used.models))

    def models(self, ctx, state: State, rows):
        plan, received = ctx.plan, self.received(state, rows)
        named = {"personalized": received}
        if all(one or own for one, own in zip(plan.shared, plan.personal, strict=True)):
            first = trees.join(state.server, trees.row(state.private, 0))
            task: Any = ctx.federation.task
            named["global"] = core.Broadcast(task.without_personal(first))
        if self.score_trained:
            named["last_trained"] = trees.take(state.trained, rows)
        return named

    def personalize(self, ctx, state, new_clients):
        """Train personal heads for one round, from the common initial head.

        Shared leaves remain the server's.
        """
        _, private = ctx.plan.split(ctx.initial_model())
        start = core.Broadcast(trees.join(state.server, private))
        trained = self.local_update(new_clients, state, start)
        _, own = ctx.plan.split(trained.models)
        return trees.join(trees.replicate(state.server, new_clients.num_clients), own)


def log_counts(client, dtype):
    """Return log n_ic, [C]; -inf for classes without samples."""
    counts = client.class_counts
    return jnp.where(counts > 0, jnp.log(jnp.maximum(counts, 1).astype(dtype)), -jnp.inf)
