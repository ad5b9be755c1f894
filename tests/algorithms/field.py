"""Four throwaway algorithms that use the contract alone: proof that it is wide enough.

They are no products: simplified forms of what the real algorithms will need. Each names its demand
on the engine.
"""

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
    """Two models and a mixing coefficient in every local step, as APFL."""

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
        cohort = cohort.keep(finite, 2 * steps)  # two gradients in each
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
    """A matrix of losses on every client's validation samples, as FedFomo."""

    validates = True

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


@struct
class GeneratorState:
    basis: Any = per_server()
    embedding: Any = per_client()


@struct
class Sequential(Algorithm):
    """Clients trained one after the other inside a round, each seeing the last's effect: pFedHN."""

    rate: float = 0.1

    def init(self, ctx):
        basis = [ctx.initial_model(f"basis{k}")["params"] for k in range(2)]
        embed = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(ctx.key, i), (2,)))
        return GeneratorState(
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *basis), embed(ctx.ids)
        )

    @staticmethod
    def _generate(basis, embedding):
        return jax.tree.map(lambda leaf: jnp.tensordot(embedding, leaf, 1), basis)

    def round(self, ctx, state):
        def visit(carry, member):
            basis, embeddings = carry
            row, present = member
            model, back = jax.vjp(self._generate, basis, embeddings[row])
            alone = ctx.everyone(row[None])
            begin = {"params": jax.tree.map(lambda x: x[None], model)}
            trained, after, _ = ctx.train(begin, alone, active=present[None])
            change = jax.tree.map(lambda new, old: new[0] - old, trained["params"], model)
            moved = optax.tree.add_scale((basis, embeddings[row]), self.rate, back(change))
            noted = ~after.diverged[0], after.steps[0]
            return (moved[0], embeddings.at[row].set(moved[1])), noted

        turn = jnp.argsort(ctx.cohort.ids)  # by permanent id, wherever a client's row is
        members = (ctx.cohort.rows[turn], ctx.cohort.mask[turn])
        (basis, embeddings), noted = jax.lax.scan(visit, (state.basis, state.embedding), members)
        cohort = ctx.cohort.keep(*(value[jnp.argsort(turn)] for value in noted))
        return GeneratorState(basis, embeddings), ctx.record(cohort)

    def models(self, ctx, state, rows):
        make = jax.vmap(self._generate, in_axes=(None, 0))
        return {"personalized": {"params": make(state.basis, state.embedding[rows])}}


@struct
class LateState:
    server: Any = per_server()
    begun: Any = per_client()  # the server model each client last started from
    trained: Any = per_client()


@struct
class Predicted(Algorithm):
    """Stale uploads used, corrected by how far the server has moved meanwhile, as PLGA."""

    def init(self, ctx):
        model = ctx.initial_model()
        return LateState(model, ctx.replicate(model), ctx.replicate(model))

    def round(self, ctx, state):
        starts, cohort = ctx.cohort.starts, ctx.cohort
        fresh, after, _ = ctx.train(Broadcast(state.server), active=starts)
        starts &= ~after.diverged
        begun = cohort.scatter(
            state.begun, trees.replicate(state.server, cohort.size), where=starts
        )
        trained = cohort.scatter(state.trained, fresh, where=starts)
        arrives = cohort.arrives & ~after.diverged
        w0, v = cohort.gather((begun, trained))
        predicted = jax.tree.map(lambda old, new, now: now + (new - old), w0, v, state.server)
        uploads = trees.where(cohort.staleness > 0, predicted, v)
        weights = mixing.by_size(ctx.sizes(), arrives)
        server = mixing.weighted_sum(weights, uploads, onto=state.server)
        record = ctx.record(
            after, up=cohort.arrives, down=cohort.starts, clients={"stale": cohort.staleness}
        )
        return LateState(server, begun, trained), record

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.trained, rows), "global": Broadcast(state.server)}


FIELD = {cls.__name__: cls for cls in (TwoModels, ValidationLosses, Sequential, Predicted)}
