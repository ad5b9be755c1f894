"""Robust aggregation rules as weights, from the Gram matrix of the updates.

Most robust rules only look at distances between updates, and what they return is a linear
combination of the updates. With the Gram matrix G of updates x_1..x_M they are new weights for
`mixing.weighted_sum`: for z = sum_j b_j x_j, |z - x_k|^2 = (b'Gb) - 2 (Gb)_k + G_kk. The median,
the trimmed mean and the second stage of Bulyan sort every coordinate instead.

Weights are [M] over the members of a round, zero for absent ones. `f`, the number of attackers that
a rule tolerates, may be traced, as may the number of members present.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.aggregation import mixing, products
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.typing import Mask, Matrix, PerMember, Rows, Scalar, Stack, Tree


def pairwise_squares(gram: Matrix) -> Matrix:
    """Return |x_i - x_j|^2 from the Gram matrix, [M, M], at least 0."""
    norms = jnp.diagonal(gram)
    return jnp.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0)


def krum_scores(gram: Matrix, mask: Mask, f: Scalar | int, excluded: int = 2) -> PerMember:
    """Return each member's sum of the n - f - `excluded` smallest squared distances, [M].

    Absent members score infinity. Blanchard et al., NeurIPS 2017, sum n - f - 2 distances;
    some implementations sum n - f - 1.
    """
    count = jnp.sum(mask)
    others = mask[:, None] & mask[None, :] & ~jnp.eye(len(mask), dtype=bool)
    ordered = jnp.sort(jnp.where(others, pairwise_squares(gram), jnp.inf), axis=1)
    nearest = jnp.arange(len(mask)) < count - f - excluded
    scores = jnp.sum(jnp.where(nearest, ordered, 0), axis=1)
    return jnp.where(mask, scores, jnp.inf)


def krum(
    gram: Matrix, mask: Mask, f: Scalar | int, selected: Scalar | int = 1, excluded: int = 2
) -> PerMember:
    """Return equal weights [M] of the `selected` members with the lowest Krum scores.

    Krum selects one, multi-Krum n - f. Ties go to the lower index.
    """
    rank = _rank(krum_scores(gram, mask, f, excluded))
    return mixing.normalize((rank < selected).astype(gram.dtype), mask)


def geometric_median(
    gram: Matrix,
    weights: PerMember,
    steps: int = 3,
    smoothing: float = 0.1,
    start_at_mean: bool = True,
) -> PerMember:
    """Return weights [M] of the smoothed Weiszfeld iteration (RFA, Pillutla et al., TSP 2022).

    Args:
      weights: of the members in the objective sum_k weights_k |z - x_k|, zero for absent ones.
      steps: iterations.
      smoothing: the least distance that is divided by, in the updates' units.
      start_at_mean: begin at the weighted mean; otherwise at the zero update.
    """

    def step(_, b):
        return mixing.normalize(weights / jnp.maximum(_distances(gram, b), smoothing))

    first = mixing.normalize(weights) if start_at_mean else jnp.zeros_like(weights)
    return lax.fori_loop(0, steps, step, first)


def centred_clipping(
    gram: Matrix,
    weights: PerMember,
    radius: Scalar | float,
    steps: int = 1,
    first: PerMember | None = None,
) -> PerMember:
    """Return weights [M] of centred clipping (Karimireddy et al., ICML 2021).

    Each step is v <- v + sum_k weights_k clip(x_k - v, radius). The weights need not sum to one:
    the rest stays at the reference that the updates are differences from.

    Args:
      first: weights of the centre v before the first step; by default it is the zero update.
    """
    weights = mixing.normalize(weights)

    def step(_, b):
        pull = weights * _clip_factor(_distances(gram, b), radius)
        return b * (1 - jnp.sum(pull)) + pull

    return lax.fori_loop(0, steps, step, jnp.zeros_like(weights) if first is None else first)


def norm_bound(gram: Matrix, weights: PerMember, radius: Scalar | float) -> PerMember:
    """Return weights [M] of the mean of updates clipped to a norm of at most `radius`."""
    norms = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0))
    return mixing.normalize(weights) * _clip_factor(norms, radius)


def nearest_neighbour_mixing(gram: Matrix, mask: Mask, f: Scalar | int) -> Matrix:
    """Return the matrix [M, M] of the mean of the n - f nearest updates, each one included.

    NNM, Allouah et al., AISTATS 2023. Rules are then computed from `matrix @ gram @ matrix.T`, and
    their weights b become `b @ matrix`.
    """
    distances = jnp.where(mask[None, :], pairwise_squares(gram), jnp.inf)
    distances = jnp.where(jnp.eye(len(mask), dtype=bool), -1.0, distances)  # itself first
    near = jax.vmap(_rank)(distances) < jnp.sum(mask) - f
    return mixing.normalize(near.astype(gram.dtype), mask) * mask[:, None]


def bucketing(key: jax.Array, mask: Mask, size: int, dtype: Any = jnp.float32) -> Matrix:
    """Return the matrix [M, M] whose row k is the mean of the k-th random group of `size`.

    Karimireddy et al., ICLR 2022. Rows beyond the number of groups are zero.
    """
    count = len(mask)
    lots = jnp.where(mask, jax.random.bits(key, (count,), jnp.uint32) >> 1, jnp.uint32(2**32 - 1))
    group = _rank(lots) // size
    member = (group[None, :] == jnp.arange(count)[:, None]) & mask[None, :]
    return mixing.normalize(member.astype(dtype))


def foolsgold(gram: Matrix, mask: Mask) -> PerMember:
    """Return weights [M], low for members with similar updates (Fung et al., RAID 2020).

    Args:
      gram: of every member's sum of updates over all rounds that it took part in.
      mask: the members present.
    """
    norms = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0))
    cosines = mixing.ratio(gram, norms[:, None] * norms[None, :])
    others = mask[:, None] & mask[None, :] & ~jnp.eye(len(mask), dtype=bool)
    cosines = jnp.where(others, cosines, 0)  # 0 to itself, as in the authors' code
    most = jnp.max(cosines, axis=1)
    # Pardoning: a member that is less alike than its neighbour is not punished for it.
    pardon = jnp.where(most[:, None] < most[None, :], mixing.ratio(most[:, None], most[None, :]), 1)
    weights = jnp.clip(1 - jnp.max(cosines * pardon, axis=1), 0, 1)
    weights = jnp.where(mask, weights, 0)
    weights = mixing.ratio(weights, jnp.max(weights))
    weights = jnp.where(weights == 1, 0.99, weights)
    logit = jnp.log(mixing.ratio(weights, 1 - weights) + 1e-30) + 0.5
    return mixing.normalize(jnp.where(mask, jnp.clip(logit, 0, 1), 0))


def fltrust(
    products_with_root: PerMember, norms: PerMember, root_norm: Scalar, mask: Mask
) -> PerMember:
    """Return weights [M] by the cosine to a trusted update (FLTrust, Cao et al., NDSS 2021).

    Args:
      products_with_root: <x_k, x_0>, [M], x_0 the update on the server's own samples.
      norms: |x_k|, [M].
      root_norm: |x_0|.

    Returns:
      b [M] for sum_k b_k x_k, in which each update is scaled to the norm of the trusted one.
    """
    trust = jnp.maximum(mixing.ratio(products_with_root, norms * root_norm), 0)
    return mixing.normalize(trust, mask) * mixing.ratio(root_norm, norms)


def self_clip(
    weights: Matrix, squares: Matrix, radius: Scalar | PerMember, own: Rows | None = None
) -> Matrix:
    """Clip each receiver's view of the others at its own model: a row-stochastic matrix [A, B].

    Receiver i gets x_i + sum_j W_ij min(1, radius_i / |x_j - x_i|) (x_j - x_i), which is the mixing
    matrix W_ij min(1, ..) with the rest of the row on i (clipped gossip; He, Karimireddy and Jaggi,
    2022).

    Args:
      weights: W, [A, B]; rows of zeros stay zero.
      squares: |x_i - x_j|^2 of receivers and senders, [A, B].
      radius: one, or one for each receiver.
      own: int [A], each receiver's place among the senders; by default its own number.
    """
    radius = jnp.broadcast_to(radius, (len(weights),))[:, None]
    clipped = weights * _clip_factor(jnp.sqrt(squares), radius)
    own = jnp.arange(len(weights)) if own is None else own
    own = jnp.asarray(own)[:, None] == jnp.arange(weights.shape[-1])
    rest = jnp.sum(weights, axis=-1) - jnp.sum(jnp.where(own, 0, clipped), axis=-1)
    return jnp.where(own, rest[:, None], clipped)


def clip_radius(weights: Matrix, squares: Matrix, share: Scalar | float) -> PerMember:
    """Return each receiver's smallest distance [A] beyond which senders have at most this weight.

    Args:
      weights, squares: of receivers and senders, [A, B].
      share: of the weights of a row.
    """
    order = jnp.argsort(squares, axis=1)
    ordered, near = (jnp.take_along_axis(x, order, axis=1) for x in (weights, squares))
    beyond = jnp.sum(weights, axis=1, keepdims=True) - jnp.cumsum(ordered, axis=1)
    slack = 8 * jnp.finfo(weights.dtype).eps  # of the sums
    first = jnp.argmax(beyond <= share * jnp.sum(weights, axis=1, keepdims=True) + slack, axis=1)
    radius = jnp.take_along_axis(near, first[:, None], axis=1)[:, 0]
    return jnp.sqrt(jnp.minimum(radius, jnp.finfo(radius.dtype).max))


def coordinate_median(stack: Stack, mask: Mask) -> Tree:
    """Return the median of every coordinate over the members present."""
    count = jnp.sum(mask)
    low, high = (count - 1) // 2, count // 2

    def of(ordered):
        return (_row(ordered, low) + _row(ordered, high)) / 2

    return _sorted(of, stack, mask)


def trimmed_mean(stack: Stack, mask: Mask, f: Scalar | int) -> Tree:
    """Return the mean of every coordinate without its `f` largest and `f` smallest values."""
    count = jnp.sum(mask)

    def of(ordered):
        place = trees.expand_to(ordered, jnp.arange(len(ordered)))
        inner = (place >= f) & (place < count - f)
        total = jnp.sum(jnp.where(inner, ordered, 0), axis=0)
        return total / jnp.maximum(count - 2 * f, 1).astype(ordered.dtype)

    return _sorted(of, stack, mask)


def bulyan(gram: Matrix, stack: Stack, mask: Mask, f: Scalar | int, excluded: int = 2) -> Tree:
    """Return the mean of every coordinate over the n - 4f selected values nearest to their median.

    Krum selects n - 2f updates one after another (Bulyan, El Mhamdi et al., ICML 2018).
    """
    count = jnp.sum(mask)

    def select(i, state):
        left, chosen = state
        best = jnp.argmin(krum_scores(gram, left, f, excluded))
        take = (i < count - 2 * f) & (jnp.arange(len(mask)) == best)
        return left & ~take, chosen | take

    none = jnp.zeros_like(mask)
    _, chosen = lax.fori_loop(0, len(mask), select, (mask, none))
    median = coordinate_median(stack, chosen)
    number = count - 4 * f

    def near(leaf, middle):
        present = trees.expand_to(leaf, chosen)
        away = jnp.where(present, jnp.abs(leaf - middle), jnp.inf)
        nearest = jnp.argsort(jnp.argsort(away, axis=0, stable=True), axis=0) < number
        total = jnp.sum(jnp.where(nearest, leaf, 0), axis=0)
        return total / jnp.maximum(number, 1).astype(leaf.dtype)

    return jax.tree.map(near, stack, median)


def _sorted(of, stack: Stack, mask: Mask) -> Tree:
    """Apply `of` to each leaf, sorted along the members with absent and NaN values last."""

    def ordered(leaf):
        there = trees.expand_to(leaf, mask)
        return of(jnp.sort(jnp.where(there & ~jnp.isnan(leaf), leaf, jnp.inf), axis=0))

    return jax.tree.map(ordered, stack)


def _distances(gram: Matrix, b: PerMember) -> PerMember:
    """Return the distances [M] of the updates to sum_j b_j x_j."""
    along = products.rows(gram, b)
    squares = products.rows(b, along) - 2 * along + jnp.diagonal(gram)
    return jnp.sqrt(jnp.maximum(squares, 0))


def _row(ordered: jax.Array, at: Scalar) -> jax.Array:
    return lax.dynamic_index_in_dim(ordered, at, 0, keepdims=False)


def _rank(values: PerMember) -> PerMember:
    """Return the place of each value in increasing order; ties by index."""
    return jnp.argsort(jnp.argsort(values, stable=True), stable=True)


def _clip_factor(norms: jax.Array, radius: Scalar | jax.Array | float) -> jax.Array:
    """Return min(1, radius / norm), 1 where the norm is 0."""
    return jnp.minimum(1, radius / jnp.where(norms > 0, norms, 1) + (norms <= 0))
