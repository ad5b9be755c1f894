"""GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized
Federated Learning.

Jianqing Zhang, Yang Hua, Hao Wang, Tao Song, Zhengui Xue, Ruhui Ma, Jian Cao, Haibing Guan.
ICCV 2023. https://arxiv.org/abs/2308.10279
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, training, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.modules import all_but, dense, initial_dense_norm, layer_norm
from fedjax_pfl.algorithms.moon import directions

VALVE, EMBEDDINGS, SHARES = "valve", "class_embeddings", "class_shares"


@dataclass(frozen=True)
class Valved(core.WrappedTask):
    """A network whose head sees its features behind a valve under the client's condition."""

    added = (VALVE, EMBEDDINGS, SHARES)

    width: int
    num_classes: int

    def draw(self, key, inputs, model):
        gamma, beta, embeddings = (jax.random.fold_in(key, k) for k in range(3))
        square, dtype = (self.width, self.width), jnp.dtype(self.dtype)
        return {
            VALVE: {"gamma": initial_dense_norm(gamma, *square, dtype),
                    "beta": initial_dense_norm(beta, *square, dtype)},
            EMBEDDINGS: jax.random.normal(embeddings, (self.num_classes, self.width), dtype),
            SHARES: jnp.full((self.num_classes,), 1 / self.num_classes, dtype),
        }  # fmt: skip

    def classify(self, model, features):
        params = model["params"]
        condition = products.matmul(params[SHARES], params[EMBEDDINGS])
        return super().classify(model, valve(params[VALVE], features, condition))


def valve(params: core.Tree, z: jax.Array, condition: jax.Array) -> jax.Array:
    """Return relu((1 + G(c)) z + B(c)), [B, d], of features z under a condition c, [d]."""
    gamma, beta = (
        layer_norm(params[name], jax.nn.relu(dense(params[name], condition[None])))
        for name in ("gamma", "beta")
    )
    return jax.nn.relu(z * (1 + gamma) + beta)


@core.algorithm("gpfl")
class GPFL(fedavg.FedAvg):
    """GPFL: a valve on the features serves the personal head and common class embeddings.

    V(z, c) = relu((1 + G(c)) z + B(c)) are features z under a condition c. The personal head h_i
    sees V(z, p_i), where p_i is the mean of the received embeddings e_k, weighted by the client's
    class shares. V(z, g), where g is their plain mean, learns from the embeddings. The local loss
    is

        CE(h_i(V(z, p_i))) + CE(cosines of V(z, g) and all e_k) + lambda |V(z, g) - e_y|,

    with the received e_y in the last term, which is the norm of the whole minibatch [B, d]. The
    server averages body, G, B and e.

    Attributes:
      weight: lambda.
      module_decay: mu, weight decay of G, B and e.
    """

    share = "body"
    needs_classes = True
    unprotected = ("the class shares of its condition",)

    weight: float = core.number(default=0.01, allowed="at least 0")
    module_decay: float = core.number(default=0.1, allowed="at least 0")

    def prepare(self, federation):
        size = federation.num_features, federation.data.num_classes
        valved = federation.with_network(lambda task: Valved.around(task, *size), (SHARES,))
        return super().prepare(valved)

    def init(self, ctx):
        state = super().init(ctx)
        return replace(state, private=with_shares(state.private, ctx))

    def local_update(self, ctx, state, received: Any):  # a stack, as heads are private
        task = ctx.federation.task

        def forward_pass(model, batch, rng, broadcast, client):
            params, fixed = model["params"], client.operand
            conditioned = {**model, "params": {**params, EMBEDDINGS: fixed}}
            forward = task.forward(conditioned, batch, rng)
            guided = valve(params[VALVE], forward.batch.features, jnp.mean(fixed, axis=0))
            cosines = products.matmul(directions(guided), directions(params[EMBEDDINGS]).T)
            loss = forward.loss + task.mean_loss(cosines, batch)
            apart = jnp.where(batch.valid[:, None], guided - fixed[batch.labels], 0)
            loss += self.weight * norm(apart)
            loss = loss.astype(forward.loss.dtype)  # cosines and norms of halves are in float32
            return forward._replace(loss=loss, model={**forward.model, "params": params})

        return super().local_update(
            ctx,
            state,
            received,
            forward=forward_pass,
            operands=received["params"][EMBEDDINGS],
            correct=training.weight_decay(self.module_decay, (VALVE, EMBEDDINGS)),
            trainable=all_but(received["params"], SHARES),
        )

    def personalize(self, ctx, state, new_clients):
        """Train for a round, as members do, from the server's model and the mean of all heads."""
        start = trees.replicate(self.new_client_start(ctx, state), new_clients.num_clients)
        return self.local_update(new_clients, state, with_shares(start, new_clients)).models


def with_shares(models: core.Stack, ctx: core.Context) -> core.Stack:
    """Return the models [N, ...] of all clients, or parts of them, with their class shares."""
    counts = ctx.federation.data.class_counts
    shares = counts / jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1)
    return {**models, "params": {**models["params"], SHARES: shares.astype(ctx.dtype)}}


def norm(x: jax.Array) -> jax.Array:
    """Return the Euclidean norm of all entries; at 0 its gradient is 0."""
    squares = jnp.sum(jnp.square(x.astype(jnp.promote_types(x.dtype, "float32"))))
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
