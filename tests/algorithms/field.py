"""Two algorithms that exist only in tests: two models in one local step, a matrix of losses."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import mixing, similarity
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import Broadcast, per_client, per_pair, per_server, struct


@struct
class MixtureState:
    server: Any = per_server()
    own: Any = per_client()
    alpha: Any = per_client()


@struct
class TwoModels(Algorithm):
    """Trains two models and their mixing coefficient in every local step, as APFL does."""

    alpha: float = 0.5

    def init(self, ctx):
        model = ctx.initial_model()
        alpha = jnp.broadcast_to(jnp.asarray(self.alpha, ctx.dtype), ctx.num_clients)
        return MixtureState(model, ctx.replicate(model), alpha)

    def round(self, ctx, state):
        cohort, step = ctx.cohort, ctx.sgd_step()

        def both(carry, batch, rng, broadcast, client):
            w, v, alpha = carry
            blend = self._blend(alpha, v.model, w.model)
            found = step.loss_and_gradient(blend, batch, rng, broadcast, client)
            apart = optax.tree.sub(v.model["params"], w.model["params"])
            slope = optax.tree.vdot(apart, found.gradient)
            along = found._replace(gradient=optax.tree.scale(alpha, found.gradient))
            return (
                step(w, batch, rng, broadcast, client),
                step.update(v, along),
                jnp.clip(alpha - ctx.learning_rate * slope, 0, 1),
            )

        received = trees.replicate(state.server, cohort.size)
        own, alpha = cohort.gather((state.own, state.alpha))
        begin = (step.begin_all(received), step.begin_all(own), alpha)
        (w, v, alpha), finite, steps = ctx.run_clients(both, begin)
        cohort = cohort.mark_diverged(finite, 2 * steps)  # two gradients in each
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        server = mixing.weighted_sum(weights, w.model, onto=state.server)
        own, alpha = cohort.scatter((state.own, state.alpha), (v.model, alpha))
        return MixtureState(server, own, alpha), ctx.record(cohort, mixing=weights)

    @staticmethod
    def _blend(alpha, v, w):
        """alpha v + (1 - alpha) w, with the statistics of v."""
        return {**v, "params": jax.tree.map(
            lambda a, b: alpha * a + (1 - alpha) * b, v["params"], w["params"]
        )}  # fmt: skip

    def models(self, ctx, state, rows):
        blend = jax.vmap(self._blend, in_axes=(0, 0, None))
        mine = blend(state.alpha[rows], trees.take(state.own, rows), state.server)
        return {"personalized": mine, "global": Broadcast(state.server)}


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
