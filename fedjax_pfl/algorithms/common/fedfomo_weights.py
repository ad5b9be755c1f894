"""FedFomo's weights: the decrease of a client's loss per distance to a candidate."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import mixing, similarity, trees

TINY = 1e-9  # a sum of weights below it is raised by it, as in the published code
NEAR = 1e-6  # of |s_i|: a model nearer to s_i than that is s_i but for rounding


def first_order(ctx, norm, starts, candidates, choice, found, rows=None):
    """Return signed w_ij, [A, 1 + D], of each client's own model and its downloads.

    Args:
      norm: of the distances, "l2" or "l1".
      starts: s_i, [A, ...].
      candidates: models [Q, ...].
      choice: int [A, 1 + D], the candidates that are a client's own model and its downloads.
      found: bool [A, D].
      rows: int [A], the clients; the cohort by default.
    """
    itself = jnp.arange(len(choice))[:, None]
    before = ctx.loss_matrix(starts, rows, choice=itself)
    after = ctx.loss_matrix(candidates, rows, choice=choice, onto=starts)
    reference, models = ctx.uploaded(starts), ctx.uploaded(candidates)

    def distance(chosen):
        return length(jax.tree.map(jnp.subtract, trees.take(models, chosen), reference), norm)

    distances = lax.map(distance, choice.T).T
    apart = distances > NEAR * jnp.asarray(length(reference, norm))[:, None]
    weights = (before - after) / jnp.where(apart, distances, 1)
    there = jnp.concatenate([jnp.ones_like(found, shape=(len(found), 1)), found], axis=1)
    # A model that overflows on the client's samples is no help, but no harm either.
    return jnp.where(apart & there & jnp.isfinite(weights), weights, 0)


def length(models, norm):
    """Return the norms of models [A, ...] as vectors, [A]."""
    if norm == "l2":
        return jnp.sqrt(similarity.squared_norms(models))
    return sum(jnp.sum(abs(x).reshape(len(x), -1), axis=1) for x in jax.tree.leaves(models))


def positive_part(signed, fallback):
    """Return weights [A, 1 + D] of sum 1, or 0 for a client that falls back to its "start"."""
    share = mixing.normalize(jnp.maximum(signed, 0))
    if fallback == "start":
        return share
    none = ~jnp.any(share > 0, axis=1)
    return share.at[:, 0].set(jnp.where(none, 1, share[:, 0]))


def rise(signed, affinity):
    """Return the increments of the affinities, [A, 1 + D]: "raw" or "normalized" weights."""
    if affinity == "raw":
        return signed
    total = jnp.abs(jnp.sum(signed, axis=1, keepdims=True))
    return signed / jnp.where(total < TINY, total + TINY, total)
