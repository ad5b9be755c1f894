"""FedCP: Separating Feature Information for Personalized Federated Learning via Conditional
Policy.

Jianqing Zhang, Yang Hua, Hao Wang, Tao Song, Zhengui Xue, Ruhui Ma, Haibing Guan. KDD 2023.
https://arxiv.org/abs/2307.01217
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.frozen_networks import check_passes, passes
from fedjax_pfl.algorithms.common.modules import all_but, dense, initial_dense_norm, layer_norm
from fedjax_pfl.algorithms.moon import directions

HEAD, PERSONAL, CONTEXT, POLICY = "head", "personal_head", "context", "policy"
WIDTHS = (20.0, 30.0, 40.0, 100.0)  # of the kernels, in squared distances
GATE = 7  # what a step's key is folded with for the policy's noise


@dataclass(frozen=True)
class Gated(core.WrappedTask):
    """A network whose features a policy divides between a personal and a global head."""

    added = (PERSONAL, CONTEXT, POLICY)

    width: int

    def draw(self, key, inputs, model):
        if HEAD not in model["params"]:
            raise core.InputError("fedcp averages heads, and the head is frozen.")
        head = model["params"][HEAD]
        if getattr(head.get("kernel"), "shape", ())[:1] != (self.width,):
            raise core.InputError(
                f"fedcp sums a head's kernel [{self.width}, outputs] over the outputs, and the "
                "layer head has none."
            )
        policy = initial_dense_norm(key, self.width, 2 * self.width, jnp.dtype(self.dtype))
        return {PERSONAL: head, CONTEXT: context_of(head), POLICY: policy}

    def apply(self, model, inputs, train, rng, valid):
        features, statistics = self.embed(model, inputs, train, rng, valid)
        noise = 0
        if train and rng is not None:
            shape = (*features.shape[:1], 2, self.width)
            noise = jax.random.gumbel(jax.random.fold_in(rng, GATE), shape, features.dtype)
        return core.Outputs(self.classify(model, features, noise), statistics, features)

    def classify(self, model, features, noise: jax.Array | float = 0):
        params = model["params"]
        scores = dense(params[POLICY], features * lax.stop_gradient(params[CONTEXT]))
        scores = jax.nn.relu(layer_norm(params[POLICY], scores))
        share = jax.nn.softmax(scores.reshape(-1, 2, self.width) + noise, axis=1)
        personal = {**model, "params": {**params, HEAD: params[PERSONAL]}}
        mine = super().classify(personal, features * share[:, 0])
        return mine + super().classify(model, features * share[:, 1])


def context_of(head: core.Tree) -> jax.Array:
    """Return v, the direction of a head's kernel [..., d, C] summed over its outputs, [..., d]."""
    total = jnp.sum(head["kernel"], axis=-1)
    unit = directions(total.reshape(-1, total.shape[-1]))
    return unit.reshape(total.shape).astype(total.dtype)


@core.algorithm("fedcp")
class FedCP(fedavg.FedAvg):
    """FedCP: a policy divides each sample's features between a personal and a global head.

    With features z, the logits are h_i(a z) + h_g((1 - a) z), where the shares a in [0, 1]^d are
    the first of a softmax over the two halves of relu(LN(P(z v_i))). Gumbel noise is added to them
    in training. v_i is the direction of the sum of h_i's columns, at the beginning of a round. The
    client trains body, h_i and policy P under the global head, which is frozen, with lambda times
    the maximum mean discrepancy between its features and the received body's. It sends the body, P
    and (h_i + h_g) / 2, of which the server takes the means.

    Attributes:
      weight: lambda.
    """

    unprotected = ("the discrepancy of a minibatch's features",)

    weight: float = core.number(default=5.0, allowed="at least 0")

    def prepare(self, federation):
        width = federation.num_features
        gated = federation.with_network(
            lambda task: Gated.around(task, width), personal=(PERSONAL, CONTEXT)
        )
        return super().prepare(gated)

    def check(self, federation):
        super().check(federation)
        check_passes(self.name, federation, networks=1)
        plan = federation.plan
        if any(plan.frozen):
            path = plan.paths[plan.frozen.index(True)]
            raise core.InputError(f"fedcp trains under a frozen global head, and {path} is frozen.")

    def local_update(self, ctx, state, received):
        together = isinstance(received, core.Broadcast)
        model, task = received.model if together else received, ctx.federation.task

        def term(params, batch, broadcast, client):
            held = client.operand if broadcast is None else broadcast
            before = task.features(held, batch.inputs)
            return self.weight * discrepancy(batch.features, before, batch.valid)

        trained = super().local_update(
            ctx,
            state,
            received,
            extra_loss=term,
            broadcast=model if together else None,
            operands=None if together else model,
            trainable=all_but(model["params"], HEAD, CONTEXT),
        )
        ctx.count_forward(passes(ctx.federation, networks=1) * trained.cohort.steps)
        params = trained.models["params"]
        own = params[PERSONAL]
        both = jax.tree.map(lambda mine, common: (mine + common) / 2, own, params[HEAD])
        params = {**params, HEAD: both, CONTEXT: context_of(own)}
        return replace(trained, models={**trained.models, "params": params})

    def new_client_start(self, ctx, state):
        model = self.servers_model(state)
        head = model["params"][HEAD]
        return {**model, "params": {**model["params"], PERSONAL: head, CONTEXT: context_of(head)}}

    def personalize(self, ctx, state, new_clients):
        """Train for a round, as members do, from the server's model and its head."""
        start = core.Broadcast(self.new_client_start(ctx, state))
        trained = self.local_update(new_clients, state, start).models
        common = trees.replicate(start.model["params"][HEAD], new_clients.num_clients)
        return {**trained, "params": {**trained["params"], HEAD: common}}


def discrepancy(z: jax.Array, other: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the squared maximum mean discrepancy of the valid rows of two samples [B, d].

    The kernel is the sum of Gaussian kernels exp(-|.|^2 / width).
    """
    rows = jnp.concatenate([z, other])
    rows = rows.astype(jnp.promote_types(rows.dtype, "float32"))
    apart = jnp.sum(jnp.square(rows[:, None] - rows), axis=2)
    some = jnp.concatenate([valid, valid])
    kernel = sum(jnp.exp(-apart / width) for width in WIDTHS)
    side = jnp.concatenate([jnp.ones(len(z)), -jnp.ones(len(z))]).astype(rows.dtype)
    signed = jnp.where(some[:, None] & some, kernel * side[:, None] * side, 0)
    return jnp.sum(signed) / jnp.maximum(jnp.sum(valid), 1) ** 2
