"""Personalized Federated Learning with Feature Alignment and Classifier Collaboration.

Jian Xu, Xinyi Tong, Shao-Lun Huang. ICLR 2023. https://arxiv.org/abs/2306.11867
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.aggregation import products


@core.struct
class State:
    """The server's body and prototypes, and every client's head.

    Attributes:
      body: phi.
      heads: h_i, after they were combined.
      means, exist: c_k, [C, d]; bool [C], the classes that have a prototype.
    """

    body: Any = core.per_server()
    heads: Any = core.per_client()
    means: jax.Array = core.per_server()
    exist: jax.Array = core.per_server()


class Statistics(NamedTuple):
    """What members send beside their models.

    Attributes:
      heads: H_i, [M, C, d], mean features of each class times its share, before training.
      variances: V_i, [M].
      totals, counts: [M, C, d], [M, C], sums of features by class after training, and samples.
    """

    heads: jax.Array
    variances: jax.Array
    totals: jax.Array
    counts: jax.Array


@core.algorithm("fedpac")
class FedPac(core.Algorithm):
    """FedPAC: bodies with aligned features are averaged, heads are combined for each client.

    Each member trains its head on the received body, then the body under that head, with the
    regularizer weight * |z - c_y|^2 / d, the mean over a minibatch: z are a sample's features, c_y
    the prototype of its class, or the client's own class mean in the received body without one.
    phi <- sum_i p_i phi_i, and h_i <- sum_j a_ij h_j, where a_i minimizes the estimated test loss
    of a combined head, sum_j a_j^2 V_j + |H_i - sum_j a_j H_j|^2, on the simplex.

    Attributes:
      weight: lambda.
      head_epochs: epochs of the head in each round.
      head_rate: learning rate of the head; constant, whatever the schedule of the body's rate is.
      cutoff: weights a_ij up to this are set to 0, and the others normalized.
    """

    needs_classes = True
    batch_norm = "shared"
    aggregator_replaces = "mean"  # of the bodies
    unprotected = ("the mean features of its classes",)

    weight: float = core.number(default=1.0, allowed="at least 0")
    head_epochs: int = core.static(default=1, allowed="at least 0")
    head_rate: float = core.number(default=0.1, allowed="above 0")
    cutoff: float = core.number(default=1e-3, allowed="in [0, 1)")

    def check(self, federation):
        core.require_whole_models(self, federation)
        core.require_features(self, federation)
        if len(federation.plan.layers) == 1:
            raise core.InputError(
                "fedpac learns a body under heads, and this network is only a head."
            )

    def has_step(self, federation):
        sizes = np.asarray(federation.data.train.size).astype(np.int64)
        some = self.head_schedule(federation).total_steps(sizes) > 0
        return some | (federation.steps() > 0)

    def head_schedule(self, federation):
        """Return the schedule of the head, of no step without `head_epochs`."""
        return replace(federation.schedule, epochs=self.head_epochs, steps=None)

    def init(self, ctx):
        body, head = self.parts(ctx, ctx.initial_model())
        shape = ctx.federation.data.num_classes, ctx.federation.num_features
        none = jnp.zeros(shape, ctx.dtype), jnp.zeros(shape[:1], bool)
        return State(body, ctx.replicate(head), *none)

    def parts(self, ctx, models):
        """Return the bodies and the heads of models."""
        return ctx.plan.with_share("body").split(models)

    def round(self, ctx, state):
        received = trees.assemble(state.body, ctx.cohort.gather(state.heads))
        before, cohort = ctx.class_sums(received, second="trace")
        trained = self.local_update(ctx, state, received, before, cohort)
        after, cohort = ctx.class_sums(trained.models, trained.cohort)

        sent = ctx.upload(trained.models, received, cohort=cohort)
        known = Statistics(*head_statistics(before, ctx.sizes()), after.totals, after.counts)
        none = jax.tree.map(jnp.zeros_like, known)
        known = ctx.upload(known, none, "statistics", cohort, compressed=False)

        p = mixing.by_size(ctx.sizes(), cohort.mask)
        body = ctx.aggregate(p, self.parts(ctx, sent)[0], onto=state.body)
        weights = self.head_weights(known, cohort.mask)
        heads = ctx.mix(weights, sent, onto=trained.models, plan=ctx.plan.with_share("head"))
        heads = cohort.scatter(state.heads, self.parts(ctx, heads)[1])

        count = jnp.sum(known.counts, axis=0)
        means = jnp.sum(known.totals, axis=0) / jnp.maximum(count, 1)[:, None]
        anyone = jnp.any(cohort.mask)
        means = jnp.where(anyone, means.astype(ctx.dtype), state.means)
        exist = jnp.where(anyone, count > 0, state.exist)

        width, held = means.shape[1], jnp.sum(known.counts > 0, axis=1)
        return State(body, heads, means, exist), ctx.record(
            cohort,
            numbers_up=(2 * width * held + 1) * cohort.mask,
            numbers_down=width * jnp.sum(state.exist) * ctx.cohort.mask,
            clients={"train_loss": trained.loss},
            mixing=weights,
        )

    def local_update(self, ctx, state, received, before, cohort) -> core.Trained:
        """Train the heads on the received body, then the bodies, aligned to the prototypes."""

        def pull(params, batch, prototypes, client):
            means, exist = prototypes
            target = jnp.where(exist[:, None], means, client.operand.astype(means.dtype))
            apart = jnp.where(batch.valid[:, None], batch.features - target[batch.labels], 0)
            count = jnp.maximum(jnp.sum(batch.valid), 1)
            term = jnp.sum(jnp.square(apart)) / (count * apart.shape[1])
            return jnp.where(ctx.t > 0, self.weight * term, 0)

        head = ctx.plan.head_mask(received)["params"]
        body = jax.tree.map(lambda on: not on, head)
        models, loss = received, jnp.zeros((), ctx.dtype)
        if self.head_epochs:
            models, cohort, loss = ctx.train(
                models, cohort, purpose="head", schedule=self.head_schedule(ctx.federation),
                trainable=head, learning_rate=jnp.asarray(self.head_rate, ctx.dtype),
            )  # fmt: skip
        of_heads = cohort.steps
        models, cohort, body_loss = ctx.train(
            models, cohort, trainable=body, extra_loss=pull,
            broadcast=(state.means, state.exist), operands=before.means,
        )  # fmt: skip
        part = of_heads.astype(body_loss.dtype) / jnp.maximum(cohort.steps, 1)
        return core.Trained(models, cohort, part * loss + (1 - part) * body_loss)

    def head_weights(self, known: Statistics, mask) -> jax.Array:
        """Return a_ij, [M, M], the weights of the heads j in member i's."""
        flat = known.heads.reshape(len(mask), -1)

        def quadratic(own):
            apart = own - flat
            return jnp.diag(known.variances) + products.matmul(apart, apart.T)

        weights = mixing.simplex_qp(jax.lax.map(quadratic, flat), mask)
        return mixing.normalize(jnp.where(weights > self.cutoff, weights, 0))

    def models(self, ctx, state, rows):
        return {"personalized": trees.assemble(state.body, trees.take(state.heads, rows))}

    def personalize(self, ctx, state, new_clients):
        """Train heads for new clients on the server's body, from the mean of all heads."""
        start = self.new_client_start(ctx, state)
        schedule = replace(new_clients.federation.schedule, epochs=max(self.head_epochs, 1))
        return new_clients.train(
            core.Broadcast(start), schedule=schedule, trainable=ctx.plan.head_mask(start)["params"],
            learning_rate=jnp.asarray(self.head_rate, ctx.dtype),
        ).models  # fmt: skip


def head_statistics(sums, sizes) -> tuple[jax.Array, jax.Array]:
    """Return H_i, [M, C, d], and V_i, [M], of sums of features by class and sizes n_i [M]."""
    n = jnp.maximum(sizes, 1).astype(sums.totals.dtype)
    heads = sums.totals / n[:, None, None]
    spread = jnp.sum(sums.second, axis=1) / n - jnp.sum(jnp.square(heads), axis=(1, 2))
    return heads, jnp.maximum(spread, 0) / n
