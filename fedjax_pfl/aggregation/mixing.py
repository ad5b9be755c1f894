"""Mixing matrices: row-stochastic weights with which models are aggregated.

A matrix has the shape [receivers, senders], or [blocks, receivers, senders] if the blocks of the
model have separate weights. Rows sum to one over present senders; a row without present senders is
zero, and `apply` leaves its receiver unchanged.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl.aggregation import column_exchange, products, streamed
from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.typing import Mask, Matrix, PerMember, Scalar, Stack, Tree

BLOCK = 2**22  # elements of the senders' models that a block of columns holds


def normalize(scores: jax.Array, senders: Mask | None = None) -> jax.Array:
    """Divide rows of non-negative scores by their sums, without absent senders (mask [M]).

    Weights have at least single precision: rows of half precision would not sum to one.
    """
    if jnp.issubdtype(scores.dtype, jnp.floating):
        scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if senders is not None:
        scores = jnp.where(senders, scores, 0)
    total = jnp.sum(scores, axis=-1, keepdims=True)
    return ratio(scores, total)


def ratio(part: jax.Array, total: jax.Array) -> jax.Array:
    """Return part / total for non-negative `total`, and 0 where it is 0; gradients are finite."""
    return jnp.where(total > 0, part / jnp.where(total > 0, total, 1), 0)


def by_size(sizes: PerMember, senders: Mask) -> PerMember:
    """Return the weights of FedAvg, p_j = n_j / sum_k n_k over present senders, [M]."""
    return normalize(sizes.astype(jnp.result_type(float)), senders)


def inverse(distances: Matrix, senders: Mask, floor: jax.Array | float = 0) -> Matrix:
    """Return weights proportional to 1 / distance (FedDWA, eq. 15), [A, B].

    Args:
      distances: non-negative, [A, B].
      senders: bool [B], present senders.
      floor: lower bound of distances; a tiny positive number keeps weights of equal models finite.
    """
    distances = jnp.asarray(distances)  # tiny numbers of float64 are 0 where that is off
    floor = jnp.maximum(jnp.asarray(floor, distances.dtype), jnp.finfo(distances.dtype).tiny)
    # Distances are divided by the row's smallest, since 1 / 1e-38 would overflow in the sum. The
    # divisor is a constant, as rows are normalized anyway.
    clipped = jnp.maximum(distances, floor)
    nearest = jnp.min(jnp.where(senders, clipped, jnp.inf), axis=-1, keepdims=True)
    nearest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(nearest), nearest, 1))
    return normalize(1 / (clipped / nearest), senders)


def softmax(scores: Matrix, senders: Mask, temperature: float = 1.0) -> Matrix:
    """Return the softmax of each row over present senders, [A, B]."""
    masked = jnp.where(senders, scores / temperature, -jnp.inf)
    top = jnp.max(masked, axis=-1, keepdims=True)
    return normalize(jnp.exp(masked - jnp.where(jnp.isfinite(top), top, 0)), senders)


def keep_top_k(weights: Matrix, k: Scalar | int) -> Matrix:
    """Keep the k largest weights of each row and normalize; ties go to the lower index.

    `k` may be traced. If it is at least the number of senders, only rounding changes.
    """
    rank = jnp.argsort(jnp.argsort(-weights, axis=-1, stable=True), axis=-1)
    return normalize(jnp.where(rank < k, weights, 0))


def simplex_qp(
    quadratic: jax.Array, senders: Mask | None = None, iterations: int = 1000
) -> jax.Array:
    """Return the weights a that minimize a^T P a on the simplex, [..., M].

    A fixed number of accelerated projected gradient steps, with momentum restarted where it leads
    uphill. With 20 senders and 1000 steps the optimality conditions hold to about 1e-12.

    Args:
      quadratic: P, symmetric and positive semidefinite, [..., M, M].
      senders: bool [..., M]; absent ones have the weight 0.
      iterations: number of steps; static.
    """
    senders = jnp.ones(quadratic.shape[-1:], bool) if senders is None else senders
    solve = partial(_simplex_qp, iterations=iterations)
    return jnp.vectorize(solve, signature="(m,m),(m)->(m)")(quadratic, senders)


def _simplex_qp(quadratic: Matrix, senders: Mask, *, iterations: int) -> PerMember:
    matrix = jnp.where(senders & senders[:, None], quadratic, 0)
    rows = jnp.max(jnp.sum(jnp.abs(matrix), axis=1))
    matrix = ratio(matrix, jnp.minimum(rows, jnp.linalg.norm(matrix)))  # eigenvalues are at most 1

    def step(_, carry):
        last, ahead, pace = carry
        target = ahead - products.matmul(matrix, ahead)
        top = jnp.max(jnp.where(senders, target, -jnp.inf))
        absent = jnp.where(jnp.isfinite(top), top, 0) - 2  # its projection is 0
        target = jnp.where(senders, target, absent)
        new = optax.projections.projection_simplex(target).astype(ahead.dtype)
        uphill = jnp.sum((ahead - new) * (new - last)) > 0
        slower = (1 + jnp.sqrt(1 + 4 * pace**2)) / 2
        momentum = jnp.where(uphill, 0, (pace - 1) / slower)
        return new, new + momentum * (new - last), jnp.where(uphill, 1, slower)

    start = normalize(senders.astype(matrix.dtype))
    found, _, _ = jax.lax.fori_loop(0, iterations, step, (start, start, jnp.ones((), start.dtype)))
    return jnp.where(senders, found, 0)


def apply(
    weights: Matrix, senders: Stack, onto: Stack, plan: LeafPlan, blockwise: bool = False
) -> Stack:
    """Mix the shared leaves of a stack: out_i = sum_j weights[i, j] senders_j.

    Args:
      weights: [A, B], or [num_blocks, A, B] with one matrix for each block of `plan`.
      senders: models [B, ...].
      onto: models [A, ...] of the receivers, which provide private leaves and rows whose weights
        are all zero.
      plan: which leaves are shared.
      blockwise: mix columns of wide leaves block by block. If senders are sharded over devices and
        columns are not exchanged (`column_exchange.mixed`), each device then gathers one block at a
        time instead of all models.

    Raises:
      TypeError: the weights have another shape, or half precision for models of more.
    """
    leaves, treedef = jax.tree.flatten(senders)
    own = treedef.flatten_up_to(onto)
    shape = (len(own[0]), len(leaves[0]))
    if weights.shape not in (shape, (plan.num_blocks, *shape)):
        raise TypeError(
            f"weights must be [receivers, senders], here {shape}, or one such matrix for each of "
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
    if _goes_by_columns(shape, sent):
        kinds = [blocks[i] for i in at]
        new = column_exchange.mixed(_product, used, sent, kinds, receivers=shape[0])
    elif streamed.is_offloaded(sent):
        new = _streamed([used[blocks[i]] for i in at], sent)
    else:
        product = _by_blocks if blockwise else products.rows
        new = [_product(used[blocks[i]], leaves[i], product) for i in at]
    mixed = list(own)
    for i, leaf in zip(at, new, strict=True):
        received = jnp.any(used[blocks[i]].astype(leaf.dtype) != 0, axis=1)
        mixed[i] = jnp.where(trees.expand_to(leaf, received), leaf, own[i])
    return treedef.unflatten(mixed)


def _goes_by_columns(shape: tuple[int, int], senders: list[jax.Array]) -> bool:
    """Return whether devices exchange columns of sharded senders for a matrix [A, B].

    For few receivers, such as class models, sums of each device's own senders are cheaper.
    """
    mesh = column_exchange.shared_clients()
    receivers, count = shape
    if mesh is None or not column_exchange.is_shared(senders):
        return False
    return receivers > count // mesh.shape[column_exchange.CLIENTS]


def _streamed(weights: list[Matrix], senders: list[jax.Array]) -> list[jax.Array]:
    """Multiply weights [A, B] with leaves [B, ...] of which only some rows are on the device."""
    nonzero = jnp.any(jnp.stack([jnp.any(w != 0, axis=0) for w in weights]), axis=0)

    def of_block(block, rows, real):
        return [
            _product(jnp.where(real, w[:, rows], 0), leaf)
            for w, leaf in zip(weights, block, strict=True)
        ]

    return streamed.sum_over_blocks(of_block, senders, nonzero)


def _product(
    weights: jax.Array,
    leaf: jax.Array,
    product: Callable[[jax.Array, jax.Array], jax.Array] = products.rows,
) -> jax.Array:
    """Return a product of weights and a leaf of models, computed in at least single precision.

    Raises:
      TypeError: weights of half precision, whose rows do not sum to one, for models of more.
    """
    low = jnp.issubdtype(weights.dtype, jnp.floating) and weights.dtype.itemsize < 4
    if low and leaf.dtype.itemsize > weights.dtype.itemsize:
        raise TypeError(
            f"Weights of {weights.dtype} do not sum to one, and the models are {leaf.dtype}: "
            "compute weights in float32, such as mixing.normalize(scores.astype(jnp.float32))."
        )
    wide = jnp.promote_types(leaf.dtype, jnp.float32)
    return product(weights.astype(wide), leaf.astype(wide)).astype(leaf.dtype)


def _by_blocks(weights: jax.Array, leaf: jax.Array) -> jax.Array:
    """Multiply weights [A, B] with a leaf [B, ...] in blocks of columns."""
    flat = leaf.reshape(len(leaf), -1)
    senders, columns = flat.shape
    width = max(1, BLOCK // senders)
    count = columns // width
    if count < 2:
        return products.rows(weights, leaf)

    def body(i, out):
        block = jax.lax.dynamic_slice_in_dim(flat, i * width, width, axis=1)
        return jax.lax.dynamic_update_slice_in_dim(
            out, products.matmul(weights, block), i * width, axis=1
        )

    out = jnp.zeros((len(weights), columns), flat.dtype)
    out = jax.lax.fori_loop(0, count, body, out)
    rest = count * width
    if rest < columns:
        out = out.at[:, rest:].set(products.matmul(weights, flat[:, rest:]))
    return out.reshape(len(weights), *leaf.shape[1:])


def weighted_sum(weights: PerMember, senders: Stack, onto: Tree) -> Tree:
    """Return the model sum_j weights[j] senders_j of a stack [B, ...] and weights [B].

    If all weights are zero (no upload arrived), `onto` is returned, as for leaves that are not
    floating point.
    """
    arrived = jnp.any(weights != 0)
    leaves, tree = jax.tree.flatten(senders)
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
    if streamed.is_offloaded(floats):

        def of_block(block, rows, real):
            return combine(jnp.where(real, weights[rows], 0), block)

        sums = iter(streamed.sum_over_blocks(of_block, floats, weights != 0))
    else:
        sums = map(partial(combine, weights), floats)

    def received(leaf, old):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return old
        return jnp.where(arrived, next(sums), old)

    return tree.unflatten(map(received, leaves, tree.flatten_up_to(onto)))


def masked_average(weights: PerMember, models: Stack, masks: Tree) -> Stack:
    """Average each element over the clients whose mask shares it, [M, ...].

    An element e of client i with masks[i, e] becomes sum_j w_j masks[j, e] models[j, e] divided by
    sum_j w_j masks[j, e]. Other elements, and elements that no client with weight shares, stay
    unchanged.

    Args:
      weights: w, non-negative [M]; models of weight 0, such as non-finite ones, are left out.
      models: [M, ...].
      masks: a tree like `models`, or a prefix of it, whose leaves are broadcast to [M, ...];
        non-zero entries are shared. Leaves that are not floating point stay unchanged.

    Raises:
      InputError: a mask cannot be broadcast to its leaf.
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

    return jax.tree.map(average, streamed.materialize(models), masks)


def combine(weights: PerMember, senders: Stack) -> Tree:
    """Return sum_j weights[j] senders_j of a stack [B, ...], for any real weights [B]."""
    return jax.tree.map(lambda leaf: _product(weights, leaf, products.mean), senders)


def check(weights: np.ndarray, tolerance: float = 1e-5, name: str = "mixing") -> None:
    """Raise `InputError` unless every row is non-negative and sums to one (on the host).

    Args:
      weights: [..., N].
      tolerance: of a row's sum.
      name: of the matrix in messages.
    """
    weights = np.asarray(weights, np.float64)  # a sum in the rows' own type would hide their error
    require(bool((weights >= -tolerance).all()), "weights", weights.min(), "non-negative")
    sums = weights.sum(-1).ravel()
    worst = float(sums[np.argmax(np.abs(sums - 1))])
    allowed = "one (mixing.normalize(weights) divides rows by their sums, row_stochastic = False "
    allowed += "declares others, and a matrix that mixes no models belongs in the state)"
    require(abs(worst - 1) <= tolerance, f"row sums of the {name} matrix", worst, allowed)
