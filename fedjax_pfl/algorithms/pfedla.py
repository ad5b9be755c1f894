"""Layer-Wised Model Aggregation for Personalized Federated Learning: pFedLA and HeurpFedLA.

Xiaosong Ma, Jie Zhang, Song Guo, Wenchao Xu. CVPR 2022. https://arxiv.org/abs/2205.03993
"""

import itertools
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import core, mixing, similarity, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms.common.hypernetwork import linear
from fedjax_pfl.utils import keys

DEPTH = 3  # layers of a trunk, as in public implementations: the paper's supplement is lost


@core.struct
class State:
    uploads: core.Stack = core.per_client()  # theta_j: each client's last trained model
    embedding: jax.Array = core.per_client()  # v, [N, d]
    # DEPTH layers of (kernel [N, d, h], bias [N, h]), each with ReLU
    trunk: core.Stack = core.per_client()
    kernel: jax.Array = core.per_pair()  # output layers, [receiver, sender, L, h]
    bias: jax.Array = core.per_pair()  # [receiver, sender, L]

    @property
    def hypernetworks(self):
        """Return (v_i, psi_i) of all clients."""
        return self.embedding, self.trunk, self.kernel, self.bias


@core.algorithm("pfedla")
class PFedLA(core.Algorithm):
    """pFedLA: a hypernetwork per client weighs all clients' last uploads block by block (Alg. 1).

    Client i's hypernetwork gives alpha_i = HN_i(v_i; psi_i) [L, N] (eq. 4). The client trains from
    thetabar_i^l = sum_j alpha_i^{l,j} theta_j^l (eqs. 5, 6). Its change dtheta_i is about minus the
    rate times a gradient, so v and psi move along its vector-Jacobian product (eqs. 10, 11):
    v <- v + (d thetabar / d v)^T dtheta, times a rate. Each block needs only the products
    <theta_j, dtheta_i>, never a Jacobian of the size of a model. All clients are updated at once,
    from the uploads before the round.

    The models scored are thetabar ("personalized", before training) and theta
    ("last_trained", after).

    Attributes:
      hypernetwork_rate: of eqs. (10), (11), which have 1, as dtheta includes the local rate. With
        ten local epochs the first block's self-weight then reaches 1.000 by round 20; smaller rates
        mix longer. With the 5e-3 of a re-implementation the weights stay close to 1/N.
      weighting: "softmax" over clients, with output layers that begin at 0, so that the first
        round is uniform averaging; "relu_norm": ReLU over its sum, outputs beginning at U(0, 1).
      grouping: what has weights of its own: each of the "blocks", or the whole "model".
      initial: one "common" initial model, or "independent" ones, which do not average well.
      embedding_size, hidden_size: d and h.
    """

    revision = 2
    aggregator_replaces = "matrix"

    hypernetwork_rate: float = core.number(default=1.0, allowed="at least 0")
    weighting: Literal["softmax", "relu_norm"] = core.static(default="softmax")
    grouping: Literal["blocks", "model"] = core.static(default="blocks")
    initial: Literal["common", "independent"] = core.static(default="common")
    embedding_size: int = core.static(default=100, allowed="at least 1")
    hidden_size: int = core.static(default=100, allowed="at least 1")

    def check(self, federation):
        if not any(federation.plan.shared):
            raise core.InputError(f"{self.name} mixes what clients share, and share is 'none'.")

    def init(self, ctx):
        ids, dtype = ctx.ids, ctx.dtype
        blocks = len(self._plan(ctx).blocks)
        sizes = [self.embedding_size, *[self.hidden_size] * DEPTH]

        def begin(client):
            key = jax.random.fold_in(keys.derive(ctx.key, "hypernetwork"), client)
            own = jax.random.split(key, 2 * DEPTH + 2)
            trunk = [
                (linear(own[2 * k], (a, b), a, dtype), linear(own[2 * k + 1], (b,), a, dtype))
                for k, (a, b) in enumerate(itertools.pairwise(sizes))
            ]

            def output(sender):
                key = jax.random.fold_in(own[-2], sender)
                return jax.random.uniform(key, (blocks, self.hidden_size), dtype)

            kernel = jax.vmap(output)(ids) * (self.weighting == "relu_norm")
            return jax.random.normal(own[-1], (self.embedding_size,), dtype), trunk, kernel

        embedding, trunk, kernel = jax.vmap(begin)(ids)
        models = ctx.replicate(ctx.initial_model())
        if self.initial == "independent":
            key = keys.derive(ctx.key, "init")
            make = ctx.federation.initial_model
            models = lax.map(lambda i: make(jax.random.fold_in(key, i)), ids)
        return State(models, embedding, trunk, kernel, jnp.zeros(kernel.shape[:-1], dtype))

    def round(self, ctx, state):
        rows, plan = ctx.cohort.rows, self._plan(ctx)
        networks, own = ctx.cohort.gather((state.hypernetworks, state.uploads))
        alpha, transpose = jax.vjp(self._alpha, networks)  # eq. (4), [M, L, N]
        applied, retained = self._applied(ctx, alpha, rows)
        # Eqs. (5), (6).
        received = ctx.mix(applied, state.uploads, onto=own, plan=plan, rows=rows)
        trained, cohort, loss = ctx.train(received)
        sent = ctx.upload(trained, received, cohort=cohort)
        change = optax.tree.sub(sent, received)
        slope = self._products(plan, change, state.uploads)
        (descent,) = transpose(jnp.where(self.fixed_blocks(retained), 0, slope))
        moved = optax.tree.add_scale(networks, self.hypernetwork_rate, descent)  # eqs. (10), (11)
        uploads = cohort.scatter(state.uploads, sent)
        state = State(uploads, *cohort.scatter(state.hypernetworks, moved))
        took_part = cohort.mask | cohort.diverged
        clients = {"train_loss": loss, "retained_blocks": retained.sum(axis=1)}
        groups = ctx.plan.groups_of_blocks(plan)
        down = took_part[:, None] & ~retained[:, groups]
        return state, ctx.record(cohort, down=down, clients=clients, alpha=applied[groups])

    def _plan(self, ctx):
        return ctx.plan.grouped(self.grouping)

    def _alpha(self, networks):
        """Return eq. (4), [k, L, N]; weights over the senders sum to one."""

        def one(embedding, trunk, kernel, bias):
            hidden = embedding
            for weight, shift in trunk:
                hidden = jax.nn.relu(products.matmul(hidden, weight) + shift)
            scores = (products.matmul(kernel, hidden) + bias).T
            if self.weighting == "softmax":
                return jax.nn.softmax(scores, axis=-1)
            positive = jax.nn.relu(scores)
            dead = jnp.sum(positive, axis=-1, keepdims=True) == 0
            return mixing.normalize(jnp.where(dead, 1, positive))

        return jax.vmap(one)(*networks)

    def _applied(self, ctx, alpha, rows):
        """Return (the applied alpha [L, k, N], the retained blocks, bool [k, L])."""
        own = jnp.take_along_axis(alpha, rows[:, None, None], axis=-1)[..., 0]
        retained = self.retained_blocks(ctx, own)
        identity = jax.nn.one_hot(rows, alpha.shape[-1], dtype=alpha.dtype)
        applied = jnp.where(retained[..., None], identity[:, None], alpha)
        return jnp.moveaxis(applied, 1, 0), retained

    def retained_blocks(self, ctx, own):
        """Return the retained blocks, bool [k, L], by the clients' self-weights [k, L]."""
        return jnp.zeros(own.shape, bool)

    def fixed_blocks(self, retained):
        """Return the blocks [k, L, 1] whose weights have no gradient."""
        return retained[..., None]

    @staticmethod
    def _products(plan, change, uploads):
        """Return <theta_j^l, dtheta_i^l> [M, L, N]; theta may be centred, as weights sum to one."""
        parts = plan.compared_parts("blocks", change, uploads)
        products = {b: similarity.gram(*pair, centred=True) for b, pair in parts.items()}
        nothing = jnp.zeros_like(next(iter(products.values())))
        return jnp.stack([products.get(b, nothing) for b in range(plan.num_blocks)], axis=1)

    def models(self, ctx, state, rows):
        networks, own = trees.take((state.hypernetworks, state.uploads), rows)
        applied, _ = self._applied(ctx, self._alpha(networks), rows)
        mixed = ctx.mix(applied, state.uploads, onto=own, plan=self._plan(ctx), rows=rows)
        return {"personalized": mixed, "last_trained": own}


@core.algorithm("heurpfedla")
class HeurPFedLA(PFedLA):
    """HeurpFedLA: pFedLA whose clients retain the blocks of largest self-weight (eq. 12).

    Retained blocks are neither mixed nor sent down.

    Attributes:
      retained: k, blocks each client keeps; ties go to the earlier block.
      updates: which blocks' products with dtheta move the hypernetwork: the "mixed" ones, as the
        weights of others are not applied, or "all" (eqs. 10, 11 to the letter).
    """

    retained: int = core.number(default=1, allowed="at least 0")
    updates: Literal["mixed", "all"] = core.static(default="mixed")

    def check(self, federation):
        super().check(federation)
        count = int(federation.plan.grouped(self.grouping).shared_blocks.sum())
        core.require(self.retained <= count, "retained", self.retained, f"at most {count} blocks")

    def retained_blocks(self, ctx, own):
        return self._plan(ctx).top_shared_blocks(own, self.retained)

    def fixed_blocks(self, retained):
        return super().fixed_blocks(retained) & (self.updates == "mixed")
