"""The server model that fits a client's samples best."""

import jax
import jax.numpy as jnp

from fedjax_pfl import trees


def best_fitting(ctx, models, own=None, rows=None, split="train", **options):
    """Return (index of the model of least mean loss on each client's samples, that loss), [M].

    Ties go to the lower number; a loss that is not a number is never the least.

    Args:
      own: private leaves [M, ...] of the clients, which replace those of the models.
      **options: `choice` and `active` of `ctx.loss_matrix`.
    """
    if jax.tree.leaves(own):
        count = len(jax.tree.leaves(own)[0])
        first = trees.replicate(trees.row(models, 0), count)
        options["onto"] = ctx.plan.with_private(first, own)
    losses = ctx.loss_matrix(models, rows, split=split, **options)
    losses = jnp.where(jnp.isnan(losses), jnp.inf, losses)
    return jnp.argmin(losses, axis=1), jnp.min(losses, axis=1)


def mean_private(state, count):
    """Return the mean of all clients' private leaves for each of `count` new clients."""
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), state.private)
    return trees.replicate(mean, count)
