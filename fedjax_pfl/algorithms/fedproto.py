"""FedProto: Federated Prototype Learning across Heterogeneous Clients.

Yue Tan, Guodong Long, Lu Liu, Tianyi Zhou, Qinghua Lu, Jing Jiang, Chengqi Zhang. AAAI 2022.
https://arxiv.org/abs/2105.00243
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms.common.head_checks import has_linear_head
from fedjax_pfl.training import ClassSums


@core.struct
class Prototypes:
    """A vector for each class.

    Attributes:
      means: [C, d], mean features.
      exist: bool [C], the classes that have a prototype.
    """

    means: jax.Array
    exist: jax.Array


@core.struct
class State:
    models: core.Stack = core.per_client()
    prototypes: Prototypes = core.per_server()


@core.algorithm("fedproto")
class FedProto(core.Algorithm):
    """FedProto: clients exchange mean features per class (prototypes) instead of models.

    Local loss f_i(theta) + weight * the distance of a minibatch's features to the prototypes P_c of
    their classes; classes without a prototype are skipped. Then each client sends the mean feature
    of each of its classes and the number of samples, and P_c is the mean over the senders.

    Attributes:
      weight: lambda; the authors take 1, and 0.1 on CIFAR-10.
      distance: "matched", |z - P_y|^2 / d, averaged over the samples of classes with a prototype;
        "batch", the same sum over the number of all samples (the published code); "class_means",
        the sum over classes of |mean of z - P_c|^2 / d (the paper).
      feature_means: computed "after" training, in evaluation mode, over all training samples (the
        paper); in the "last_epoch" of training, before each step (the published code).
      weighting: a client counts by "size", its samples of the class (the paper), or "uniform" (the
        published code).
      drop_missing: drop the prototype of a class that no member has in this round, as in the
        published code; otherwise the last one stays.
      eligible: the classes among which the nearest prototype is found: "all" that have one (the
        paper), or the client's "own" (the published code).
    """

    needs_classes = True
    server_needs = "sums"
    unprotected = ("the mean features of its classes",)

    weight: float = core.number(default=1.0, allowed="at least 0")
    distance: Literal["matched", "batch", "class_means"] = core.static(default="matched")
    feature_means: Literal["after", "last_epoch"] = core.static(default="after")
    weighting: Literal["size", "uniform"] = core.static(default="size")
    drop_missing: bool = core.static(default=False)
    eligible: Literal["own", "all"] = core.static(default="all")

    def check(self, federation):
        count, width = federation.data.num_classes, federation.num_features
        if not has_linear_head(federation):
            raise core.InputError(
                "fedproto finds the nearest prototype with a head of its own making: the network's "
                f"must be a layer called head, with kernel [{width}, {count}] and bias [{count}]."
            )

    def remarks(self, federation):
        stays = "models stay with their clients, mean features of classes are sent"
        among = "all classes" if self.eligible == "all" else "the client's own classes"
        scored = f"scored by the nearest prototype among {among}; its head's score is called head"
        return [*super().remarks(federation), stays, scored]

    def init(self, ctx):
        count, width = ctx.federation.data.num_classes, ctx.federation.num_features
        none = Prototypes(jnp.zeros((count, width), ctx.dtype), jnp.zeros((count,), bool))
        return State(ctx.replicate(ctx.initial_model()), none)

    def round(self, ctx, state):
        work = (
            self.train_then_average
            if self.feature_means == "after"
            else self.average_while_training
        )
        trained, sums = work(ctx, ctx.cohort.gather(state.models), state.prototypes)
        width, none = sums.totals.shape[-1], jax.tree.map(jnp.zeros_like, sums)
        sums = ctx.upload(sums, none, "class_sums", trained.cohort, compressed=False)
        return State(
            trained.cohort.scatter(state.models, trained.models),
            self.aggregated(state.prototypes, sums, trained.cohort.mask),
        ), ctx.record(
            trained.cohort,
            up=0,
            down=0,
            numbers_up=width * jnp.sum(sums.counts > 0, axis=1),
            numbers_down=width * jnp.sum(state.prototypes.exist) * ctx.cohort.mask,
            clients={"train_loss": trained.loss},
        )

    def pull(self, params, batch, prototypes, client):
        """Return the regularizer of the local loss on one minibatch."""
        z, means, exist = batch.features, prototypes.means, prototypes.exist
        if self.distance == "class_means":
            own = ClassSums.of(batch, z, len(exist))
            counted, apart, count = exist & (own.counts > 0), own.means - means, 1
        else:
            counted, apart = exist[batch.labels] & batch.valid, z - means[batch.labels]
            count = jnp.sum(counted if self.distance == "matched" else batch.valid)
        squares = jnp.square(jnp.where(counted[:, None], apart, 0).astype(wide(apart)))
        return self.weight * jnp.sum(squares) / (z.shape[1] * jnp.maximum(count, 1))

    def train_then_average(self, ctx, received, prototypes) -> tuple[core.Trained, ClassSums]:
        """Train locally, then average features over all training samples in evaluation mode."""
        trained = ctx.train(received, extra_loss=self.pull, broadcast=prototypes)
        sums, cohort = ctx.class_sums(trained.models, trained.cohort)
        return replace(trained, cohort=cohort), sums

    def average_while_training(self, ctx, received, prototypes) -> tuple[core.Trained, ClassSums]:
        """Train locally, averaging features of the last epoch's steps, each before its step."""
        step = ctx.sgd_step(extra_loss=self.pull)
        task, schedule = ctx.federation.task, ctx.federation.schedule

        def see_and_step(carry, batch, rng, broadcast, client):
            state, sums = carry
            # The same as in the step's own forward pass, so that a compiler can make it once.
            features = task.outputs(state.model, batch.inputs, True, rng, batch.valid).features
            late = client.num_steps - client.step <= schedule.steps_per_epoch(client.size)
            seen = ClassSums.of(batch, features, len(sums.counts))
            sums = jax.tree.map(lambda s, n: s + jnp.where(late, n, 0), sums, seen)
            return step(state, batch, rng, broadcast, client), sums

        classes, width = prototypes.means.shape
        none = ClassSums.zeros(classes, width, prototypes.means.dtype)
        begin = step.begin_all(received), trees.replicate(none, ctx.cohort.size)
        (local, sums), finite, steps = ctx.run_clients(see_and_step, begin, broadcast=prototypes)
        loss = local.loss / jnp.maximum(steps, 1)
        return core.Trained(local.model, ctx.cohort.mark_diverged(finite, steps), loss), sums

    def aggregated(self, last: Prototypes, sums: ClassSums, mask) -> Prototypes:
        """Return the server's prototypes from the members' sums [M, ...] and the `last` ones."""
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)
        means, held = total.means, total.counts > 0
        if self.weighting == "uniform":
            holders = jnp.sum(sums.counts > 0, axis=0)
            means = jnp.sum(sums.means, axis=0) / jnp.maximum(holders, 1)[:, None]
        means = jnp.where(held[:, None], means.astype(last.means.dtype), last.means)
        exist = last.exist & ~jnp.any(mask) if self.drop_missing else last.exist
        return Prototypes(means, held | exist)

    def models(self, ctx, state, rows):
        own = trees.take(state.models, rows)
        return {"personalized": self.predictors(ctx, own, state.prototypes, rows), "head": own}

    def predictors(self, ctx, own: core.Stack, prototypes: Prototypes, rows) -> core.Stack:
        """Return the models `own` [k, ...] of clients `rows` with nearest-prototype heads."""
        counts = ctx.federation.data.class_counts[rows]
        eligible = prototypes.exist & ((counts > 0) | (self.eligible == "all"))
        heads = jax.vmap(nearest, in_axes=(None, 0, 0))
        head = heads(prototypes.means, eligible, own["params"]["head"])
        return {**own, "params": {**own["params"], "head": head}}

    def new_client_start(self, ctx, state):
        return ctx.initial_model()  # the models were never averaged

    def personalize(self, ctx, state, new_clients):
        near = {"extra_loss": self.pull, "broadcast": state.prototypes}
        own = super().personalize(ctx, state, new_clients, **near)
        rows = jnp.arange(new_clients.num_clients)
        return self.predictors(new_clients, own, state.prototypes, rows)


def wide(leaf: jax.Array) -> jnp.dtype:
    """Return the dtype for sums of values of a leaf's dtype."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def nearest(means: jax.Array, eligible: jax.Array, own: dict) -> dict:
    """Return the linear head whose largest logit is that of the nearest eligible prototype.

    Up to terms that all classes share, |z - P_c|^2 = |Q_c|^2 + 2 m Q_c - 2 z Q_c, Q_c = P_c - m;
    m, the mean prototype, keeps the numbers small. Without an eligible class the result is the
    client's `own` head.
    """
    used = eligible[:, None]
    middle = jnp.sum(jnp.where(used, means, 0), axis=0) / jnp.maximum(jnp.sum(eligible), 1)
    apart = jnp.where(used, means - middle, 0)
    bias = -jnp.sum(apart * (apart + 2 * middle), axis=1)
    head = {"kernel": 2 * apart.T, "bias": jnp.where(eligible, bias, -1e9)}
    return jax.tree.map(lambda a, b: jnp.where(jnp.any(eligible), a, b), head, dict(own))
