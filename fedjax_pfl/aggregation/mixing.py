"""Row-stochastic matrices: every aggregation in this package is one.

A matrix has shape [receivers, senders], or [blocks, receivers, senders] where every block of the
model is weighted on its own. Rows sum to one over the senders that are present; a row without any
present sender is zero, and `apply` leaves its receiver unchanged.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation import columns, products, streamed
from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.typing import Mask, Matrix, PerMember, Scalar, Stack, Tree

BLOCK = 2**22  # elements of the senders' models that a block of columns holds


def normalize(scores: jax.Array, senders: Mask | None = None) -> jax.Array:
    """Rows of non-negative scores divided by their sums, absent senders (mask [M]) left out."""
    if senders is not None:
        scores = jnp.where(senders, scores, 0)
    total = jnp.sum(scores, axis=-1, keepdims=True)
    return ratio(scores, total)


def ratio(part: jax.Array, whole: jax.Array) -> jax.Array:
    """part / whole for `whole` of at least 0, and 0 where it is 0; with finite gradients."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), 0)


def by_size(sizes: PerMember, senders: Mask) -> PerMember:
    """FedAvg's weights p_j = n_j / sum_k n_k over the present senders, [M]."""
    return normalize(sizes.astype(jnp.result_type(float)), senders)


def inverse(distances: Matrix, senders: Mask, floor: jax.Array | float = 0) -> Matrix:
    """Weights proportional to 1 / distance (FedDWA, eq. 15), [A, B].

    Args:
      distances: non-negative, [A, B].
      senders: bool [B], the senders that may have weight.
      floor: distances below it count as it; a tiny positive number keeps the weights of equal
        models finite.
    """
    floor = jnp.maximum(jnp.asarray(floor, distances.dtype), jnp.finfo(distances.dtype).tiny)
    # In units of the row's smallest: 1 / 1e-38 would overflow in the sum. A constant, since rows
    # are normalised anyway.
    clipped = jnp.maximum(distances, floor)
    nearest = jnp.min(jnp.where(senders, clipped, jnp.inf), axis=-1, keepdims=True)
    nearest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(nearest), nearest, 1))
    return normalize(1 / (clipped / nearest), senders)


def softmax(scores: Matrix, senders: Mask, temperature: float = 1.0) -> Matrix:
    """Row softmax over the present senders, [A, B]."""
    masked = jnp.where(senders, scores / temperature, -jnp.inf)
    top = jnp.max(masked, axis=-1, keepdims=True)
    return normalize(jnp.exp(masked - jnp.where(jnp.isfinite(top), top, 0)), senders)


def keep_top_k(weights: Matrix, k: Scalar | int) -> Matrix:
    """The k largest weights of each row, renormalised; ties go to the lower index.

    `k` may be traced; k >= the number of senders changes nothing but rounding.
    """
    rank = jnp.argsort(jnp.argsort(-weights, axis=-1, stable=True), axis=-1)
    return normalize(jnp.where(rank < k, weights, 0))


def apply(
    weights: Matrix, senders: Stack, onto: Stack, plan: LeafPlan, blockwise: bool = False
) -> Stack:
    """Mixes the shared leaves of a stack: out_i = sum_j weights[i, j] senders_j.

    Args:
      weights: [A, B], or [num_blocks, A, B] with one matrix for each block of `plan`.
      senders: models [B, ...].
      onto: models [A, ...] of the receivers: their private leaves are kept, and so are the rows
        whose weights are all zero.
      plan: which leaves are shared.
      blockwise: columns of wide leaves are mixed block by block. Where devices share the senders,
        and do not take columns of all (`columns.mixed`), each then gathers a block at a time
        instead of all models.

    Raises:
      TypeError: weights of another shape than that.
    """
    leaves, treedef = jax.tree.flatten(senders)
    own = treedef.flatten_up_to(onto)
    wanted = (len(own[0]), len(leaves[0]))
    if weights.shape not in (wanted, (plan.num_blocks, *wanted)):
        raise TypeError(
            f"weights must be [receivers, senders], here {wanted}, or one such matrix for each of "
            f"{plan.num_blocks} blocks, got the shape {weights.shape}."
        )
    at = [
        i
        for i, leaf in enumerate(leaves)
        if plan.shared[i] and jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    blocks = {i: plan.block_of[i] if weights.ndim == 3 else 0 for i in at}
    by_block = dict(enumerate(weights)) if weights.ndim == 3 else {0: weights}
    used = {block: by_block[block] for block in set(blocks.values())}
    sent = [leaves[i] for i in at]
    if _goes_by_columns(wanted, sent):
        kinds = [blocks[i] for i in at]
        new = columns.mixed(_product, used, sent, kinds, receivers=wanted[0])
    elif streamed.is_offloaded(sent):
        new = _streamed([used[blocks[i]] for i in at], sent)
    else:
        product = _by_blocks if blockwise else products.rows
        new = [product(used[blocks[i]].astype(leaves[i].dtype), leaves[i]) for i in at]
    mixed = list(own)
    for i, leaf in zip(at, new, strict=True):
        received = jnp.any(used[blocks[i]].astype(leaf.dtype) != 0, axis=1)
        mixed[i] = jnp.where(trees.expand_to(leaf, received), leaf, own[i])
    return treedef.unflatten(mixed)


def _goes_by_columns(shape: tuple[int, int], senders: list[jax.Array]) -> bool:
    """Whether devices that share senders exchange columns of them, [A, B] being the matrix.

    For a few receivers, such as the models of classes, sums of each device's own senders are less.
    """
    mesh = columns.shared_clients()
    receivers, count = shape
    if mesh is None or not columns.is_shared(senders):
        return False
    return receivers > count // mesh.shape[columns.AXIS]


def _streamed(weights: list[Matrix], senders: list[jax.Array]) -> list[jax.Array]:
    """Products of weights [A, B] and leaves [B, ...] of which the device has some rows alone."""
    wanted = jnp.any(jnp.stack([jnp.any(w != 0, axis=0) for w in weights]), axis=0)

    def of_block(block, rows, real):
        return [
            _product(jnp.where(real, w[:, rows], 0), leaf)
            for w, leaf in zip(weights, block, strict=True)
        ]

    return streamed.added(of_block, senders, wanted)


def _product(weights: Matrix, leaf: jax.Array) -> jax.Array:
    return products.rows(weights.astype(leaf.dtype), leaf)


def _by_blocks(weights: jax.Array, leaf: jax.Array) -> jax.Array:
    """weights [A, B] times leaf [B, ...] in blocks of columns."""
    flat = leaf.reshape(len(leaf), -1)
    senders, columns = flat.shape
    width = max(1, BLOCK // senders)
    whole = columns // width
    if whole < 2:
        return products.rows(weights, leaf)

    def body(i, out):
        block = jax.lax.dynamic_slice_in_dim(flat, i * width, width, axis=1)
        return jax.lax.dynamic_update_slice_in_dim(
            out, products.matmul(weights, block), i * width, axis=1
        )

    out = jnp.zeros((len(weights), columns), flat.dtype)
    out = jax.lax.fori_loop(0, whole, body, out)
    rest = whole * width
    if rest < columns:
        out = out.at[:, rest:].set(products.matmul(weights, flat[:, rest:]))
    return out.reshape(len(weights), *leaf.shape[1:])


def weighted_sum(weights: PerMember, senders: Stack, onto: Tree) -> Tree:
    """One model, sum_j weights[j] senders_j, of a stack [B, ...] and weights [B].

    Without any weight (no upload arrived) it is `onto`; so are leaves that are no floats.
    """
    arrived = jnp.any(weights != 0)
    leaves, tree = jax.tree.flatten(senders)
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
    if streamed.is_offloaded(floats):

        def of_block(block, rows, real):
            return combine(jnp.where(real, weights[rows], 0), block)

        sums = iter(streamed.added(of_block, floats, weights != 0))
    else:
        sums = map(partial(combine, weights), floats)

    def received(leaf, old):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return old
        return jnp.where(arrived, next(sums), old)

    return tree.unflatten(map(received, leaves, tree.flatten_up_to(onto)))


def masked_average(weights: PerMember, models: Stack, masks: Tree) -> Stack:
    """Averages the elements that clients share, each over those that share it, [M, ...].

    An element e of client i with masks[i, e] becomes sum_j w_j masks[j, e] models[j, e] divided by
    sum_j w_j masks[j, e]; its other elements, and elements that nobody with weight shares, stay as
    they are. With masks of ones it is the weighted average, with zeros nothing changes.

    Args:
      weights: w, non-negative [M]; models of weight 0, such as non-finite ones, enter no average.
      models: [M, ...].
      masks: a tree like one of `models`, or a prefix of it, whose leaves are broadcast to [M, ...];
        non-zero entries are shared. Leaves that are no floats stay.

    Raises:
      InputError: a mask that cannot be broadcast to its leaf.
    """
    masks = jax.tree.broadcast(masks, models)

    def average(leaf, mask):
        shapes = jnp.shape(mask), leaf.shape
        fits = len(shapes[0]) <= len(shapes[1])
        ends = zip(reversed(shapes[0]), reversed(shapes[1]), strict=False)
        fits = fits and all(one in (1, other) for one, other in ends)
        require(fits, "Shape of a mask", shapes[0], f"one that is broadcast to {shapes[1]}")
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        shared = jnp.broadcast_to(jnp.asarray(mask) != 0, leaf.shape)
        weight = jnp.where(shared, trees.expand_to(leaf, weights.astype(leaf.dtype)), 0)
        total = jnp.sum(weight, axis=0)
        mean = ratio(jnp.sum(weight * jnp.where(weight > 0, leaf, 0), axis=0), total)
        return jnp.where(shared & (total > 0), mean, leaf)

    return jax.tree.map(average, streamed.here(models), masks)


def combine(weights: PerMember, senders: Stack) -> Tree:
    """sum_j weights[j] senders_j of a stack [B, ...], for any real weights [B]."""

    return jax.tree.map(lambda leaf: products.mean(weights.astype(leaf.dtype), leaf), senders)


def check(weights: np.ndarray, tolerance: float = 1e-5) -> None:
    """Raises `InputError` unless every row is non-negative and sums to one (host side)."""
    weights = np.asarray(weights)
    require(bool((weights >= -tolerance).all()), "weights", weights.min(), "non-negative")
    sums = weights.sum(-1).ravel()
    worst = float(sums[np.argmax(np.abs(sums - 1))])
    allowed = "one (mixing.normalize(weights) divides each row by its sum; an algorithm whose rows "
    allowed += "need not sum to one says row_stochastic = False)"
    require(abs(worst - 1) <= tolerance, "row sums of the mixing matrix", worst, allowed)
