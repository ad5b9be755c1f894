"""pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning.

Jiahao Tan, Yipeng Zhou, Gang Liu, Jessie Hui Wang, Shui Yu. 2023.
https://arxiv.org/abs/2305.15706
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, training, trees
from fedjax_pfl.aggregation import products

ITSELF = 0.9999  # similarity of a client with itself, and the most that counts of any pair


@core.struct
class State:
    server: Any = core.per_server()  # g, of the warm-up
    models: core.Stack = core.per_client()  # w_i, as each client last trained it
    joined: core.PerClient = core.per_client()  # bool: whether it trained after the warm-up
    similarity: jax.Array = core.per_pair()  # S


@core.algorithm("pfedsim")
class PFedSim(core.Algorithm):
    """pFedSim: FedAvg at first, then bodies mixed by the similarity of clients' classifiers.

    After the warm-up a client trains from its own head and the body sum_j a_ij theta_j of the last
    models of all clients, where a_ij is proportional to -log(1 - S_ij), S_ii = 0.9999. S_ij is the
    mean over classes of the cosine of both classifiers' weights for the class, at least 0; it is
    updated in rounds in which both clients take part, and pairs that never did have no weight.

    A client's model is the one that it trained last; before it first trains after the warm-up, it
    is the server's.

    Attributes:
      warmup_fraction: share of the rounds that are FedAvg's; 1 is FedAvg.
    """

    needs_classes = True
    batch_norm = "shared"

    warmup_fraction: float = core.number(default=0.5, allowed="in [0, 1]")

    def check(self, federation):
        core.require_whole_models(self, federation)
        params = federation.model_shapes["params"]
        training.classifier_kernel(params, federation.plan, federation.data.num_classes)

    def round_remarks(self, federation, rounds):
        warm = int(self.warmup_fraction * rounds * (1 + 1e-6))  # 0.29 * 100 rounds to 28.99
        return [f"the first {warm} of {rounds} rounds are FedAvg's"]

    def init(self, ctx):
        model, count = ctx.initial_model(), ctx.num_clients
        never, unknown = jnp.zeros((count,), bool), jnp.zeros((count, count), ctx.dtype)
        return State(ctx.plan.split(model)[0], ctx.replicate(model), never, unknown)

    def round(self, ctx, state):
        warm = jnp.floor(self.warmup_fraction * ctx.num_rounds * (1 + 1e-6))  # as above
        personal = ctx.t >= warm
        rows, stages = ctx.cohort.rows, ctx.plan.grouped("stages")
        own = self.own(ctx, state, rows)
        weights = jnp.where(personal, attention(ctx.cohort.gather(state.similarity), rows), 0)
        body = jnp.array([block != stages.head for block in stages.blocks])
        mixed = ctx.mix(body[:, None, None] * weights, state.models, onto=own, plan=stages)
        trained, cohort, loss = ctx.train(mixed)
        sent = ctx.upload(trained, mixed, cohort=cohort)
        shares = mixing.by_size(ctx.sizes(), cohort.mask)
        mean = ctx.aggregate(shares, ctx.plan.split(sent)[0], onto=state.server)
        alike, last = class_cosines(ctx, sent), cohort.gather_pairs(state.similarity)
        state = State(
            trees.where(personal, state.server, mean),
            cohort.scatter(state.models, sent),
            cohort.scatter(state.joined, jnp.broadcast_to(personal, (cohort.size,))),
            cohort.scatter_pairs(state.similarity, jnp.where(personal, alike, last)),
        )
        averaging = jnp.zeros_like(weights).at[:, rows].set(shares.astype(weights.dtype))
        down = jnp.where(personal, body[ctx.plan.groups_of_blocks(stages)], True)
        return state, ctx.record(
            cohort,
            down=down & ctx.cohort.mask[:, None],
            clients={"train_loss": loss},
            mixing=jnp.where(personal, weights, averaging),
        )

    def own(self, ctx, state: State, rows) -> core.Stack:
        """Return the models that clients trained after the warm-up; before it, the server's."""
        models, joined = trees.take((state.models, state.joined), rows)
        shared, private = ctx.plan.split(models)
        server = trees.replicate(state.server, len(rows))
        return trees.join(trees.where(joined, shared, server), private)

    def models(self, ctx, state, rows):
        return {"personalized": self.own(ctx, state, rows)}

    def new_client_start(self, ctx, state):
        _, private = ctx.plan.split(state.models)
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), private)
        return trees.join(state.server, mean)


def attention(similarity: jax.Array, rows: jax.Array) -> jax.Array:
    """Return a_ij of clients `rows` from their similarities [M, N]; zeros where none is known."""
    itself = rows[:, None] == jnp.arange(similarity.shape[1])
    alike = jnp.where(itself, 0, jnp.minimum(similarity.astype(jnp.result_type(float)), ITSELF))
    some = jnp.any(alike > 0, axis=1, keepdims=True)
    scores = -jnp.log1p(-jnp.where(itself, ITSELF, alike))
    return jnp.where(some, mixing.normalize(scores), 0).astype(similarity.dtype)


def class_cosines(ctx: core.Context, models: core.Stack) -> jax.Array:
    """Return the mean over classes of the cosines of classifiers' weights, at least 0, [M, M]."""
    classes = ctx.federation.data.num_classes

    def unit(params):
        kernel = training.classifier_kernel(params, ctx.plan, classes)
        norms = jnp.linalg.norm(kernel, axis=0)
        return mixing.ratio(kernel, norms)

    units = jax.vmap(unit)(models["params"])
    return jnp.maximum(products.pairs(units, units) / classes, 0)
