"""Servers that add products of clients' low-rank adapters to the frozen kernels."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.adapter_ranks import (
    A,
    B,
    adapter_remarks,
    check_both_shared,
    trained_adapters,
)


@core.struct
class State(fedavg.State):
    """FedAvg's state, and the server's kernels."""

    base: Any = core.per_server()  # {layer: kernel}, of the layers with adapters


class MergedAdapters(fedavg.FedAvg):
    """FedAvg whose server also changes the frozen kernels of the layers with adapters.

    A subclass defines `added`. Layers one of whose factors is frozen are left out; without other
    adapters it is FedAvg.
    """

    server_needs = "models"
    aggregator_replaces = "nothing"

    def added(self, a: jax.Array, b: jax.Array, weights: jax.Array) -> jax.Array:
        """Return what is added to a kernel, [inputs, outputs], before the adapters' scale.

        Args:
          a, b: the members' factors [M, inputs, rank] and [M, rank, outputs], as received.
          weights: [M].
        """
        raise NotImplementedError

    def check(self, federation):
        check_both_shared(self.name, federation)
        if federation.base_dtype is not None:
            raise core.InputError(
                f"{self.name} adds to the frozen kernels, and base_dtype={federation.base_dtype!r} "
                "would round what it adds: leave base_dtype out."
            )

    def remarks(self, federation):
        return [*super().remarks(federation), *adapter_remarks(federation)]

    def init(self, ctx):
        begun = super().init(ctx)
        adapters: Any = ctx.federation.adapters
        base = {
            name: trees.at(ctx.federation.backbone["params"], path)[adapters.kernel]
            for name, path in trained_adapters(ctx.federation).items()
        }
        return State(begun.server, begun.private, begun.optimizer, base)

    def updated_base(self, ctx, state):
        changed: dict[str, Any] = {}
        adapters: Any = ctx.federation.adapters
        for name, path in trained_adapters(ctx.federation).items():
            inner = changed
            for part in path:
                inner = inner.setdefault(part, {})
            inner[adapters.kernel] = state.base[name]
        return {"params": changed} if changed else None

    def weigh(self, ctx, state: Any, sent):
        weights, state = super().weigh(ctx, state, sent)
        base, params = dict(state.base), sent.models["params"]
        adapters: Any = ctx.federation.adapters
        for name, path in trained_adapters(ctx.federation).items():
            factors = trees.at(params, path)
            more = self.added(factors[A], factors[B], weights) * adapters.scale
            base[name] += adapters.in_shape(more, base[name]).astype(base[name].dtype)
        return weights, replace(state, base=base)

    def record(self, ctx, trained, weights, up=1, down=1, **noted):
        adapters: Any = ctx.federation.adapters
        there = trained_adapters(ctx.federation)
        total = jnp.sum(ctx.cohort.mask) * adapters.rank if there else 0
        return ctx.record(
            trained.cohort, up=up, down=down,
            numbers_down=numbers_of_merge(ctx.federation, total) if there else None,
            clients={"train_loss": trained.loss, **noted}, mixing=weights,
        )  # fmt: skip


def numbers_of_merge(federation: core.Federation, total: Any) -> Any:
    """Return how many numbers the server sends for the change of the kernels, int32 [].

    For each layer these are the members' factors or the sum of their products, whichever is less.

    Args:
      total: sum of the members' ranks.
    """
    adapters: Any = federation.adapters
    return sum(
        jnp.minimum(inputs * outputs, total * (inputs + outputs))
        for path, inputs, outputs in adapters.layers
        if "/".join(path) in trained_adapters(federation)
    )


def summed_products(a: jax.Array, b: jax.Array, weights: jax.Array) -> jax.Array:
    """Return sum_i weights_i A_i B_i of factors [M, inputs, rank] and [M, rank, outputs].

    It is the product of the stacked factors, of rank M * rank.
    """
    a = weights.astype(a.dtype)[:, None, None] * a
    stacked = jnp.moveaxis(a, 0, 1).reshape(a.shape[1], -1)
    return products.matmul(stacked, b.reshape(-1, b.shape[-1]))
