"""SPFL's similarity S: cosines of the clients' updates, by layers or by stages."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedjax_pfl import core, similarity


def of_stages(plan: core.LeafPlan, update: core.Stack) -> jax.Array:
    """Return the cosines of bodies and of heads, [N, N, 2]."""
    parts = [_cosines(plan, update, in_stage(plan, stage).__getitem__) for stage in (0, 1)]
    return jnp.stack(parts, axis=-1)


def of_layers(
    plan: core.LeafPlan, update: core.Stack, layers: Sequence[int], weights: Sequence[float]
) -> jax.Array:
    """Return the weighted sum of the cosines of some blocks' kernels, [N, N, 1]."""
    parts = [
        part * _cosines(plan, update, lambda i, b=b: plan.block_of[i] == b, kernels=True)
        for part, b in zip(weights, layers, strict=True)
    ]
    return sum(parts[1:], start=parts[0])[..., None]


def in_stage(plan: core.LeafPlan, stage: int) -> list[bool]:
    """Return whether the server receives a leaf and it belongs to the body (0) or head (1)."""
    return [
        plan.compared(i) and (plan.blocks[block] == plan.head) == bool(stage)
        for i, block in enumerate(plan.block_of)
    ]


def compared_layers(plan: core.LeafPlan, stack: core.Stack, with_head: bool) -> list[int]:
    """Return the blocks with a shared kernel, in the network's order."""
    leaves = jax.tree.leaves(stack)
    seen = {plan.block_of[i] for i, leaf in enumerate(leaves) if plan.compared(i) and leaf.ndim > 2}
    return sorted(b for b in seen if with_head or plan.blocks[b] != plan.head)


def _cosines(plan, update, chosen, kernels=False):
    leaves = jax.tree.leaves(update)
    part = plan.select(
        update,
        lambda i: plan.compared(i) and chosen(i) and not (kernels and leaves[i].ndim < 3),
    )
    return similarity.cosines(part, part)


def parse_weights(text: str) -> tuple[float, ...]:
    """Parse numbers such as "0.5,0.3,0.2"; () for "auto"."""
    if text == "auto":
        return ()
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except (ValueError, AttributeError):
        numbers = (-1.0,)
    good = all(0 <= number < float("inf") for number in numbers) and sum(numbers) > 0
    core.require(good, "layer_weights", text, "'auto' or numbers of at least 0 such as 0.5,0.3,0.2")
    return numbers
