"""FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations.

Ziyao Wang, Zheyu Shen, Yexiao He, Guoheng Sun, Hongyi Wang, Lingjuan Lyu, Ang Li. NeurIPS 2024.
https://arxiv.org/abs/2409.05976
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms.common import merged_adapters
from fedjax_pfl.algorithms.common.adapter_ranks import (
    A,
    B,
    check_both_trained,
    copies_and_numbers,
    train_new_clients,
    trained_adapters,
    truncated,
)
from fedjax_pfl.algorithms.common.merged_adapters import MergedAdapters, numbers_of_merge


@core.struct
class State(merged_adapters.State):
    """The state of servers that change kernels, and the clients' ranks."""

    ranks: Any = core.per_client()  # int32 [N]; None if all are the same


@core.algorithm("flora")
class FLoRA(MergedAdapters):
    """FLoRA: the server stacks the clients' adapters, and their product is merged into W.

    W <- W + s sum_i p_i A_i B_i. Every round begins with new adapters, A drawn and B = 0, of which
    a client of a smaller rank takes the first columns.
    """

    takes_ranks = True

    def check(self, federation):
        super().check(federation)
        check_both_trained(self.name, federation)

    def init(self, ctx):
        begun, adapters = super().init(ctx), ctx.federation.adapters
        ranks = None
        if adapters is not None and adapters.ranks:
            ranks = adapters.ranks_of(ctx.federation.data.ids)
        return State(begun.server, begun.private, begun.optimizer, begun.base, ranks)

    def received(self, state: Any, rows):
        models = super().received(state, rows)
        if state.ranks is None:
            return models
        if isinstance(models, core.Broadcast):
            models = trees.replicate(models.model, len(rows))
        return truncated(models, trees.take(state.ranks, rows))

    def added(self, a, b, weights):
        return merged_adapters.summed_products(a, b, weights)

    def server_update(self, ctx, state: Any, mean, weights, used):
        state = super().server_update(ctx, state, mean, weights, used)
        drawn = ctx.federation.initial_model(ctx.key_for("adapters"))
        layers = trained_adapters(ctx.federation)
        names = {f"params/{name}/{leaf}" for name in layers for leaf in (A, B)}
        new = [path in names for path in ctx.plan.paths]
        fresh = ctx.plan.select(drawn, new.__getitem__)
        kept = ctx.plan.select(state.server, lambda i: not new[i])
        return replace(state, server=trees.join(kept, fresh))

    def record(self, ctx, trained, weights, up=1, down=1, **noted):
        adapters: Any = ctx.federation.adapters
        if adapters is None or not adapters.ranks:
            return super().record(ctx, trained, weights, up, down, **noted)
        took_part = trained.cohort.mask | trained.cohort.diverged
        ranks = adapters.ranks_of(ctx.federation.data.ids[ctx.cohort.rows])
        copies, numbers = copies_and_numbers(ctx.federation, ranks, took_part)
        merged = numbers_of_merge(ctx.federation, jnp.sum(ranks * took_part))
        return ctx.record(
            trained.cohort, up=copies, down=copies,
            numbers_up=numbers, numbers_down=numbers + merged * took_part,
            clients={"train_loss": trained.loss, "rank": ranks, **noted}, mixing=weights,
        )  # fmt: skip

    def personalize(self, ctx, state: Any, new_clients):
        if state.ranks is None:
            return super().personalize(ctx, state, new_clients)
        return train_new_clients(new_clients, self.new_client_start(ctx, state))
