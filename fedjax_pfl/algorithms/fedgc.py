"""Federated Learning for Face Recognition with Gradient Correction.

Yifan Niu, Weihong Deng. AAAI 2022. https://arxiv.org/abs/2112.07246
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms.common.head_checks import has_linear_head


@core.struct
class State:
    """The server's body and every client's head, which the server has, too.

    Attributes:
      body, heads: phi, W_i.
      held: bool [N, C], the classes of each client; none of those that never took part.
    """

    body: Any = core.per_server()
    heads: Any = core.per_client()
    held: jax.Array = core.per_client()


@core.algorithm("fedgc")
class FedGC(core.Algorithm):
    """FedGC: bodies are averaged; the server pushes heads away from the classes of other clients.

    A client's softmax and predictions are over the classes of its training samples. After a round
    the server takes one step on all heads, along the gradient of

        sum over clients i and their classes c of  log(1 + sum_jk exp(w_jk e_c) / exp(e_c e_c)),

    where w_jk is the column of class k in the head of a client j that has k and lacks c. e_c is the
    mean of column c over the clients that have it, without a gradient. Clients that never took part
    are left out.

    Attributes:
      weight: lambda, the server's learning rate over the clients'.
    """

    needs_classes = True
    batch_norm = "shared"
    aggregator_replaces = "mean"  # of the bodies
    absent_kept = False  # the server corrects all heads
    also_sent = ("the classes that it has",)

    weight: float = core.number(default=1.0, allowed="at least 0")

    def check(self, federation):
        core.require_whole_models(self, federation)
        if not has_linear_head(federation):
            raise core.InputError(
                "fedgc compares classes of heads: the network's must be a layer called head, with "
                "a kernel [features, classes] and a bias."
            )
        if len(federation.plan.layers) == 1:
            raise core.InputError("fedgc averages bodies, and this network is only a head.")

    def init(self, ctx):
        body, head = self.parts(ctx, ctx.initial_model())
        none = jnp.zeros((ctx.num_clients, ctx.federation.data.num_classes), bool)
        return State(body, ctx.replicate(head), none)

    def parts(self, ctx, models):
        """Return the bodies and the heads of models."""
        return ctx.plan.with_share("body").split(models)

    def round(self, ctx, state):
        received = trees.assemble(state.body, ctx.cohort.gather(state.heads))
        trained, cohort, loss = ctx.train(received, forward=self.forward_pass(ctx))
        bodies, heads = self.parts(ctx, ctx.upload(trained, received, cohort=cohort))
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        body = ctx.aggregate(weights, bodies, onto=state.body)
        classes = ctx.federation.data.class_counts[cohort.rows] > 0
        held = cohort.scatter(state.held, classes)
        heads = self.corrected(ctx, cohort.scatter(state.heads, heads), held)
        return State(body, heads, held), ctx.record(
            cohort, clients={"train_loss": loss}, mixing=weights
        )

    def forward_pass(self, ctx):
        """Return the cross-entropy over the client's own classes."""
        task = ctx.federation.task

        def forward_pass(model, batch, rng, broadcast, client):
            forward = task.forward(model, batch, rng)
            logits = jnp.where(client.class_counts > 0, forward.batch.logits, -jnp.inf)
            return forward._replace(loss=task.mean_loss(logits, batch))

        return forward_pass

    def corrected(self, ctx, heads, held):
        """Return all heads after the server's step, with the classes `held`, [N, C]."""
        kernels = heads["params"]["head"]["kernel"]  # [N, d, C]
        owners = jnp.sum(held, axis=0)
        own = jnp.where(held[:, None], kernels, 0)
        mean = (jnp.sum(own, axis=0) / jnp.maximum(owners, 1)).astype(kernels.dtype)

        def regularizer(kernels):
            near = products.matmul(kernels.swapaxes(1, 2), mean)  # [N, C of k, C of c]
            others = held[:, :, None] & ~held[:, None]
            near = jnp.where(others, near, -1e9)
            apart = jax.nn.logsumexp(near, axis=(0, 1)) - jnp.sum(jnp.square(mean), axis=0)
            return jnp.sum(owners * jax.nn.softplus(apart))

        slope = jax.grad(regularizer)(kernels)
        rate = self.weight * ctx.learning_rate
        head = {**heads["params"]["head"], "kernel": kernels - (rate * slope).astype(kernels.dtype)}
        return {**heads, "params": {**heads["params"], "head": head}}

    def models(self, ctx, state, rows):
        own = trees.assemble(state.body, trees.take(state.heads, rows))
        return {"personalized": over_own_classes(own, ctx.federation.data.class_counts[rows])}

    def new_client_start(self, ctx, state):
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), state.heads)
        return trees.join(state.body, mean)

    def personalize(self, ctx, state, new_clients):
        own = super().personalize(ctx, state, new_clients, forward=self.forward_pass(new_clients))
        return over_own_classes(own, new_clients.federation.data.class_counts)


def over_own_classes(models: core.Stack, counts: jax.Array) -> core.Stack:
    """Return models [k, ...] that predict only classes with samples, of counts [k, C]."""
    head = models["params"]["head"]
    head = {**head, "bias": jnp.where(counts > 0, head["bias"], -1e9)}
    return {**models, "params": {**models["params"], "head": head}}
