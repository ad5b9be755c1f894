"""An algorithm that exists only in tests: a matrix of losses."""

from typing import Any

import jax.numpy as jnp

from fedjax_pfl import mixing, similarity
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import per_client, per_pair, struct


@struct
class AffinityState:
    models: Any = per_client()
    affinity: Any = per_pair()


@struct
class ValidationLosses(Algorithm):
    """Weighs models by their losses on each client's validation samples, as FedFomo does."""

    needs_validation = True

    def init(self, ctx):
        count = ctx.num_clients
        return AffinityState(ctx.replicate(ctx.initial_model()), jnp.zeros((count, count)))

    def round(self, ctx, state):
        received = ctx.cohort.gather(state.models)
        losses = ctx.loss_matrix(state.models, split="validation")  # [M, N]
        own = jnp.take_along_axis(losses, ctx.cohort.rows[:, None], axis=1)
        distance = jnp.sqrt(similarity.squared_distances(received, state.models))
        gain = jnp.maximum(own - losses, 0) / jnp.where(distance > 0, distance, jnp.inf)
        weights = mixing.normalize(gain)  # [receivers, all stored models]
        mixed = ctx.mix(weights, state.models, onto=received)
        trained, cohort, loss = ctx.train(mixed)
        raised = ctx.cohort.gather(state.affinity) + gain
        return AffinityState(
            cohort.scatter(state.models, trained), cohort.scatter(state.affinity, raised)
        ), ctx.record(cohort, down=ctx.num_clients, clients={"train_loss": loss})

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}
