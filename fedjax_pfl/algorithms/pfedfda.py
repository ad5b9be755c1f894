"""Personalized Federated Learning via Feature Distribution Adaptation.

Connor J. McLaughlin, Lili Su. NeurIPS 2024. https://arxiv.org/abs/2411.00329
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import linalg

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.head_checks import has_linear_head
from fedjax_pfl.training.sample_features import SampleFeatures

FOLDS = 2
FIRST = np.arange(6) / 5  # beta is the best pair of these,
FINER = (0.1, 0.05, 0.025)  # then of itself and what lies this far from it
TIE = 1e-5  # relative difference of losses that rounding may reverse


@core.struct
class Gaussians:
    """Distributions of features: that of class c is N(means[c], covariance).

    Attributes:
      means: [..., C, d].
      covariance: [..., d, d].
    """

    means: jax.Array
    covariance: jax.Array


@core.struct
class State(fedavg.State):
    known: Gaussians = core.per_server()


@core.struct
class Adapted(core.Trained):
    """The results of local training: the uploads, and how far Gaussians were moved.

    Attributes:
      own: the Gaussians that the server receives, [M, ...].
      beta: [M, 2].
    """

    own: Any = None
    beta: Any = None


@core.algorithm("pfedfda")
class PFedFda(fedavg.FedAvg):
    """pFedFDA: heads follow from Gaussians of the features, of all clients and of the client.

    The head of Gaussians (mu, Sigma) is that of linear discriminant analysis: with
    S = (1 - e) Sigma + e (tr Sigma / d) I, its kernel is S^-1 mu_c and its bias
    log p_c - mu_c S^-1 mu_c / 2, where p_c + e is proportional to the client's share of class c.
    Members train the body under the head of the server's Gaussians. They estimate their own from
    the features of their samples, move the server's towards them,

        mu <- mu + beta_1 (mu_i - mu),  Sigma <- Sigma + beta_2 (Sigma_i - Sigma),

    and send the result, of which the server takes the mean. beta in [0, 1]^2 minimizes the
    cross-entropy of cross-validation in two folds. Clients are scored with the server's body and
    the head of their Gaussians, estimated anew.

    Attributes:
      single: one beta for means and covariance.
      min_samples: samples of a class with which its mean is estimated; the server's otherwise.
      epsilon: e.
    """

    revision = 2
    share = "body"
    needs_classes = True
    unprotected = ("the features of its classes",)

    single: bool = core.static(default=False)
    min_samples: int = core.number(default=3, allowed="at least 1")
    epsilon: float = core.number(default=1e-4, allowed="in (0, 1]")

    def check(self, federation):
        if not has_linear_head(federation):
            raise core.InputError(
                "pfedfda makes the head from Gaussians of features: the network must have a layer "
                "called head, with a kernel and a bias."
            )
        if len(federation.plan.layers) == 1:
            raise core.InputError("pfedfda learns a body, and this network is only a head.")

    def init(self, ctx):
        shape = ctx.federation.data.num_classes, ctx.federation.num_features
        dtype = jnp.promote_types(ctx.dtype, jnp.float32)
        means = jax.random.uniform(ctx.key_for("means"), shape, dtype)
        known = Gaussians(means, jnp.eye(shape[1], dtype=dtype))
        return State(**vars(super().init(ctx)), known=known)

    def local_update(self, ctx, state: State, received: Any):
        models = self.with_heads(ctx, received, state.known, ctx.cohort.rows)
        body = jax.tree.map(lambda head: not head, ctx.plan.head_mask(models)["params"])
        trained = super().local_update(ctx, state, models, trainable=body)
        adapt = partial(self.adapted, state.known)
        (own, beta), cohort = ctx.sample_features(trained.models, trained.cohort, then=adapt)
        held = core.Broadcast(state.known)
        own = ctx.upload(own, held, "gaussians", cohort, compressed=False)
        return Adapted(**vars(replace(trained, cohort=cohort)), own=own, beta=beta)

    def weigh(self, ctx, state: State, sent: Any):
        weights, _ = super().weigh(ctx, state, sent)
        plain = replace(ctx, federation=replace(ctx.federation, aggregator=None))
        known = plain.aggregate(weights, sent.own, onto=state.known)
        if ctx.federation.uploads is not None:  # noise may leave no covariance
            known = replace(known, covariance=nearest(known.covariance, self.epsilon))
        return weights, replace(state, known=known)

    def record(self, ctx, trained: Any, weights, up=1, down=1, **noted):
        classes, width = trained.own.means.shape[1:]
        numbers = (classes * width + width * (width + 1) // 2) * ctx.cohort.mask
        clients = {"train_loss": trained.loss, "beta_means": trained.beta[:, 0],
                   "beta_covariance": trained.beta[:, 1], **noted}  # fmt: skip
        return ctx.record(
            trained.cohort, up=up, down=down, numbers_up=numbers * trained.cohort.mask,
            numbers_down=numbers, clients=clients, mixing=weights,
        )  # fmt: skip

    def with_heads(self, ctx, models: Any, gaussians: Gaussians, rows) -> core.Stack:
        """Return models [k, ...] of clients `rows` with heads of Gaussians, of each or common."""
        counts = ctx.federation.data.class_counts[rows]
        shares = counts / jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1) + self.epsilon
        prior = jnp.log(mixing.normalize(shares.astype(gaussians.means.dtype)))
        if isinstance(models, core.Broadcast):
            models = trees.replicate(models.model, len(rows))
        if gaussians.means.ndim == 2:
            kernel, bias = self.discriminant(gaussians)
            kernels = jnp.broadcast_to(kernel, (len(rows), *kernel.shape))
        else:
            kernels, bias = lax.map(self.discriminant, gaussians)
        head = {"kernel": kernels.astype(ctx.dtype), "bias": (bias + prior).astype(ctx.dtype)}
        return {**models, "params": {**models["params"], "head": head}}

    def discriminant(self, gaussians: Gaussians) -> tuple[jax.Array, jax.Array]:
        """Return the kernel [d, C], and the bias [C] without the prior."""
        means = gaussians.means
        kernel = self.solve(gaussians.covariance, means.T)
        return kernel, -jnp.sum(means.T * kernel, axis=0) / 2

    def solve(self, covariance, columns) -> jax.Array:
        """Return S^-1 times the columns [d, k]."""
        width = len(covariance)
        spread = self.epsilon * jnp.trace(covariance) / width
        smoothed = (1 - self.epsilon) * covariance + spread * jnp.eye(width)
        return linalg.cho_solve(linalg.cho_factor(smoothed, lower=True), columns)

    def adapted(self, known: Gaussians, seen: SampleFeatures) -> tuple[Gaussians, jax.Array]:
        """Return a client's Gaussians and its beta [2], of its features [n, d]."""
        beta = self.best_beta(known, seen)
        own = self.estimated(known, seen, seen.valid)
        means = known.means + beta[0] * (own.means - known.means)
        spread = known.covariance + beta[1] * (own.covariance - known.covariance)
        return Gaussians(means, spread), beta

    def estimated(self, known: Gaussians, seen: SampleFeatures, used) -> Gaussians:
        """Return a client's own Gaussians, of its features [n, d] where `used` [n]."""
        classes, width = known.means.shape
        z = jnp.where(used[:, None], seen.features, 0).astype(known.means.dtype)
        of_class = ((seen.labels == jnp.arange(classes)[:, None]) & used).astype(z.dtype)  # [C, n]
        counts = jnp.sum(of_class, axis=1)
        means = products.matmul(of_class, z) / jnp.maximum(counts, 1)[:, None]
        means = jnp.where((counts >= self.min_samples)[:, None], means, known.means)
        apart = jnp.where(used[:, None], z - means[seen.labels], 0)
        scatter = products.matmul(apart.T, apart) / jnp.maximum(jnp.sum(counts) - 1, 1)
        return Gaussians(means, scatter + (1 + self.epsilon) * jnp.eye(width, dtype=z.dtype))

    def best_beta(self, known: Gaussians, seen: SampleFeatures) -> jax.Array:
        """Return beta, [2]: the best of finer and finer grids, the smallest of those that tie."""
        classes = len(known.means)
        of_class = (seen.labels[:, None] == jnp.arange(classes)) & seen.valid[:, None]  # [n, C]
        counts = jnp.sum(of_class, axis=0)
        rank = jnp.sum(jnp.where(of_class, jnp.cumsum(of_class, axis=0), 0), axis=1) - 1
        known_class = seen.valid & (counts[seen.labels] >= FOLDS)
        fold = jnp.where(known_class, rank % FOLDS, -1)
        shares = mixing.normalize(counts.astype(known.means.dtype)) + self.epsilon
        prior = jnp.log(mixing.normalize(shares))

        def losses(k, spreads, weights):
            """The cross-entropy of fold k, [spreads, weights], under the others' Gaussians."""
            asked, apart = fold == k, jax.tree.map(jnp.subtract, owns[k], known)
            z = jnp.where(asked[:, None], seen.features, 0).astype(prior.dtype)
            both = jnp.concatenate([known.means, apart.means])

            def under(spread):
                columns = self.solve(known.covariance + spread * apart.covariance, both.T)
                base, more = jnp.split(products.matmul(z, columns), 2, axis=1)
                inner = products.matmul(both, columns)
                plain, cross, square = (
                    jnp.diag(inner[a:, b:]) for a, b in ((0, 0), (classes, 0), (classes, classes))
                )

                def loss(b):
                    bias = prior - (plain[:classes] + 2 * b * cross + b * b * square) / 2
                    logs = jax.nn.log_softmax(base + b * more + bias)
                    chosen = jnp.take_along_axis(logs, seen.labels[:, None], axis=1)[:, 0]
                    return -jnp.sum(jnp.where(asked, chosen, 0)) / jnp.maximum(jnp.sum(asked), 1)

                return jax.vmap(loss)(weights)

            return lax.map(under, spreads)

        def best(spreads, weights):
            total = jnp.asarray(sum(losses(k, spreads, weights) for k in range(FOLDS)))
            if self.single:
                total = jnp.where(jnp.eye(len(spreads), dtype=bool), total, jnp.inf)
            at = first_of_ties(total)
            return jnp.stack([spreads[at // len(spreads)], weights[at % len(spreads)]])

        def around(found, step):
            near = found[:, None] + step * jnp.asarray([-1, 0, 1], found.dtype)
            return best(*jnp.clip(near, 0, 1)), None

        owns = [self.estimated(known, seen, known_class & (fold != k)) for k in range(FOLDS)]
        first = jnp.asarray(FIRST, prior.dtype)
        found, _ = lax.scan(around, best(first, first), jnp.asarray(FINER, prior.dtype))
        enough = jnp.sum(known_class) >= 2 * FOLDS
        return jnp.where(enough, found[::-1], 0)

    def models(self, ctx, state: State, rows):
        return {"personalized": self.own_models(ctx, state, self.received(state, rows), rows)}

    def own_models(self, ctx, state: State, models, rows) -> core.Stack:
        """Return models [k, ...] of clients `rows` with the heads of their own Gaussians."""
        adapt = partial(self.adapted, state.known)
        (own, _), _ = ctx.sample_features(models, ctx.cohort_of(rows), then=adapt)
        return self.with_heads(ctx, models, own, rows)

    def new_client_start(self, ctx, state: State):
        model = self.servers_model(state)
        kernel, bias = self.discriminant(state.known)
        head = {"kernel": kernel.astype(ctx.dtype), "bias": bias.astype(ctx.dtype)}
        return {**model, "params": {**model["params"], "head": head}}

    def personalize(self, ctx, state: State, new_clients):
        """Return the server's body with heads of the new clients' Gaussians."""
        start = core.Broadcast(self.new_client_start(ctx, state))
        return self.own_models(new_clients, state, start, new_clients.cohort.rows)


def first_of_ties(losses: jax.Array) -> jax.Array:
    """Return the first index of the flat losses that are the least, to rounding."""
    return jnp.argmax(losses <= (1 + TIE) * jnp.min(losses))


def nearest(covariance: jax.Array, least: jax.Array | float) -> jax.Array:
    """Return the nearest symmetric matrix whose eigenvalues are at least `least`."""
    values, axes = jnp.linalg.eigh((covariance + covariance.T) / 2)
    return products.matmul(axes * jnp.maximum(values, least), axes.T)
