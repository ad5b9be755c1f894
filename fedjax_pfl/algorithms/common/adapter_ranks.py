"""Adapters of clients' own ranks, padded with zeros to the largest one.

Columns of A and rows of B beyond a client's rank that are zero stay zero in its local steps, as
each has a gradient of zero where the other is zero.
"""

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.aggregation import products

A, B = "lora_a", "lora_b"
AXIS = {A: -1, B: -2}  # of the rank


def trained_adapters(federation: core.Federation) -> dict[str, tuple[str, ...]]:
    """Return the paths of the layers whose adapters are trained entirely, A and B, by name."""
    every = () if federation.adapters is None else federation.adapters.layers
    named = {"/".join(path): path for path, _, _ in every}
    kept = federation.plan.paths
    return {
        name: path
        for name, path in named.items()
        if {f"params/{name}/{A}", f"params/{name}/{B}"} <= {*kept}
    }


def adapter_remarks(federation: core.Federation) -> list[str]:
    """Return the remark that an algorithm is FedAvg, if no adapters are trained entirely."""
    there = trained_adapters(federation)
    return [] if there else ["no adapters with both factors trained: FedAvg"]


def check_both_shared(name: str, federation: core.Federation) -> None:
    """Raise `InputError` if one of an adapter's factors is private."""
    plan = federation.plan
    for path, shared in zip(plan.paths, plan.shared, strict=True):
        if path.rpartition("/")[2] in AXIS and not shared:
            raise core.InputError(
                f"{name} needs both factors of each adapter, and share keeps {path} private."
            )


def check_both_trained(name: str, federation: core.Federation) -> None:
    """Raise `InputError` if adapters have different ranks and one of the factors is frozen."""
    adapters = federation.adapters
    if adapters is not None and adapters.ranks:
        count = len(trained_adapters(federation))
        if count < len(adapters.layers):
            raise core.InputError(f"{name} with lora_ranks needs both factors of each adapter.")


def truncated(models: core.Stack, ranks: jax.Array) -> core.Stack:
    """Return models [M, ...] whose adapters are zero beyond each client's rank, int32 [M]."""

    def cut(path, leaf):
        axis = AXIS.get(str(getattr(path[-1], "key", "")))
        if axis is None:
            return leaf
        shape = [1] * leaf.ndim
        shape[axis] = leaf.shape[axis]
        kept = jnp.arange(leaf.shape[axis]).reshape(shape) < ranks.reshape(
            -1, *[1] * (leaf.ndim - 1)
        )
        return jnp.where(kept, leaf, 0)

    return jax.tree_util.tree_map_with_path(cut, models)


def squared_norms(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return |A B|_F^2 of factors [M, inputs, rank] and [M, rank, outputs], [M]."""
    inner = products.matmul(a.swapaxes(1, 2), a) * products.matmul(b, b.swapaxes(1, 2))
    return jnp.maximum(jnp.sum(inner, axis=(1, 2)), 0)


def copies_and_numbers(
    federation: core.Federation, ranks: jax.Array, took_part: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the size of one model with clients' own ranks: copies [M, blocks], numbers [M].

    Blocks with adapters are counted as numbers, by each client's rank. Both are 0 for members that
    did not take part.
    """
    plan, adapters = federation.plan, federation.adapters
    sizes = plan.shared_block_sizes()
    names = trained_adapters(federation)
    whole = [block not in names for block in plan.blocks]
    copies = took_part[:, None] * jnp.asarray(whole, jnp.int32)
    if adapters is None or not names:
        return copies, jnp.zeros(len(ranks), jnp.int32)
    widths = [i + o for path, i, o in adapters.layers if "/".join(path) in names]
    of_blocks = sum(int(sizes[k]) for k, one in enumerate(whole) if not one)
    rest = of_blocks - adapters.rank * sum(widths)
    return copies, took_part * (ranks * sum(widths) + rest)


def train_new_clients(clients: core.Context, model: core.Tree) -> core.Stack:
    """Train new clients for a round from a model, with adapters of their own ranks, [K, ...]."""
    models, adapters = trees.replicate(model, clients.num_clients), clients.federation.adapters
    if adapters is not None:
        models = truncated(models, adapters.ranks_of(clients.federation.data.ids))
    return clients.train(models).models
