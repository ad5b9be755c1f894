"""Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models.

Yae Jee Cho, Luyang Liu, Zheng Xu, Aldi Fahrezi, Gauri Joshi. EMNLP 2024.
https://arxiv.org/abs/2401.06432
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.adapter_ranks import (
    A,
    B,
    adapter_remarks,
    check_both_shared,
    check_both_trained,
    copies_and_numbers,
    squared_norms,
    train_new_clients,
    trained_adapters,
    truncated,
)


@core.struct
class State(fedavg.State):
    """FedAvg's state, and the clients' ranks."""

    ranks: Any = core.per_client()  # int32 [N]


@core.algorithm("hetlora")
class HetLoRA(fedavg.FedAvg):
    """HetLoRA: adapters of clients' own ranks, weighted by the norm of their product.

    A client of rank r_i receives the first r_i columns of A and rows of B. Its loss pulls the last
    ones, beyond gamma r_i, towards zero; if these have become smaller, its rank falls to gamma r_i.

    Attributes:
      gamma: part of a client's rank that is neither pulled nor pruned; 1 prunes nothing.
      tail_weight: weight of the regularizer, the sum over layers of |A_tail| |B_tail|.
      min_rank: smallest rank that pruning leaves; smaller ranks are not pruned.
      weighting: the server's weights: "norm" of the clients' products, or "size" of their data.
    """

    revision = 2
    server_needs = "models"
    aggregator_replaces = "mean"
    takes_ranks = True

    gamma: float = core.number(default=0.99, allowed="in (0, 1]")
    tail_weight: float = core.number(default=0.01, allowed="at least 0")
    min_rank: int = core.number(default=1, allowed="at least 1")
    weighting: Literal["norm", "size"] = core.static(default="norm")

    def check(self, federation):
        check_both_shared(self.name, federation)
        check_both_trained(self.name, federation)
        if trained_adapters(federation) and getattr(federation.uploads, "privacy", None):
            raise core.InputError(
                "hetlora's clients prune their ranks by their models, and the server knows the "
                "ranks without noise: leave dp='client' out."
            )
        if trained_adapters(federation) and compresses(federation) and self.gamma < 1:
            raise core.InputError(
                "hetlora prunes ranks, and compress needs adapters of one rank: take gamma=1, got "
                f"{self.gamma:g}, or leave compress out."
            )

    def remarks(self, federation):
        return [*super().remarks(federation), *adapter_remarks(federation)]

    def init(self, ctx):
        begun, adapters = super().init(ctx), ctx.federation.adapters
        ids = ctx.federation.data.ids
        ranks = jnp.zeros(len(ids), jnp.int32) if adapters is None else adapters.ranks_of(ids)
        return State(begun.server, begun.private, begun.optimizer, ranks)

    def received(self, state: Any, rows):
        models = super().received(state, rows)
        if isinstance(models, core.Broadcast):
            models = trees.replicate(models.model, len(rows))
        return truncated(models, trees.take(state.ranks, rows))

    def kept(self, ranks):
        """Return how many of a client's first columns are neither pulled nor pruned."""
        return jnp.floor(self.gamma * ranks + 1e-4).astype(jnp.int32)  # 0.84 * 75 rounds to 62.99

    def tails(self, params, rank, layers):
        """Return the sum over layers of |A_tail| |B_tail| of one client's adapters."""
        total = 0.0
        for path in layers.values():
            a, b = (trees.at(params, path)[name] for name in (A, B))
            tail = jnp.arange(a.shape[1]) >= self.kept(rank)
            total += norm(jnp.where(tail, a, 0)) * norm(jnp.where(tail[:, None], b, 0))
        return total

    def local_update(self, ctx, state: Any, received: Any):
        layers, ranks = trained_adapters(ctx.federation), ctx.cohort.gather(state.ranks)
        if not layers:
            trained = super().local_update(ctx, state, received)
            return Sent(*trained, ranks=ranks, before=ranks)

        def near(params, batch, broadcast, client):
            return self.tail_weight * self.tails(params, client.operand, layers)

        models, cohort, loss = super().local_update(
            ctx, state, received, extra_loss=near, operands=ranks
        )
        tails = jax.vmap(lambda params, rank: self.tails(params, rank, layers))
        smaller = tails(models["params"], ranks) < tails(received["params"], ranks)
        fewer = jnp.minimum(jnp.maximum(self.kept(ranks), self.min_rank), ranks)
        before, ranks = ranks, jnp.where(smaller & cohort.mask, fewer, ranks)
        return Sent(truncated(models, ranks), cohort, loss, ranks=ranks, before=before)

    def weigh(self, ctx, state: Any, sent: Any):
        weights, state = super().weigh(ctx, state, sent)
        state = replace(state, ranks=sent.cohort.scatter(state.ranks, sent.ranks))
        layers = trained_adapters(ctx.federation)
        if self.weighting == "size" or not layers:
            return weights, state
        own = (trees.at(sent.models["params"], path) for path in layers.values())
        squares = sum(squared_norms(one[A], one[B]) for one in own)
        return mixing.normalize(jnp.sqrt(squares), sent.cohort.mask), state

    def record(self, ctx, trained: Any, weights, up=1, down=1, **noted):
        if compresses(ctx.federation):  # then all ranks are the largest
            return super().record(ctx, trained, weights, up, down, rank=trained.ranks, **noted)
        took_part = trained.cohort.mask | trained.cohort.diverged
        (up, more), (down, received) = (
            copies_and_numbers(ctx.federation, ranks, took_part)
            for ranks in (trained.ranks, trained.before)
        )
        return ctx.record(
            trained.cohort, up=up, down=down, numbers_up=more, numbers_down=received,
            clients={"train_loss": trained.loss, "rank": trained.ranks, **noted}, mixing=weights,
        )  # fmt: skip

    def personalize(self, ctx, state: Any, new_clients):
        return train_new_clients(new_clients, self.new_client_start(ctx, state))

    def models(self, ctx, state: Any, rows):
        named = {"personalized": self.received(state, rows)}
        if not jax.tree.leaves(state.private):
            named["global"] = core.Broadcast(state.server)
        return named


@core.struct
class Sent(core.Trained):
    """Trained models of the ranks that the members now have."""

    ranks: Any = None  # int32 [M]
    before: Any = None  # int32 [M], the ranks that they received


def compresses(federation: core.Federation) -> bool:
    """Return whether uploads are compressed."""
    return getattr(federation.uploads, "compressor", None) is not None


def norm(x: jax.Array) -> jax.Array:
    """Return the norm of an array, whose gradient at zero is zero."""
    square = jnp.sum(jnp.square(x))
    some = square > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, square, 1)), 0)
