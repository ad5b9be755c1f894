"""The metrics of one round, as arrays of all clients."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils.errors import require, require_whole
from fedjax_pfl.utils.structs import struct


@struct
class Record:
    """The metrics of one round; made by `Context.record`.

    Attributes:
      clients: arrays [N], one number for each client, NaN or 0 for absent clients. Added by
        `Context.record` and the engine: "participated", "diverged", "local_steps" (computed
        gradients), "nonfinite" (clients whose values became non-finite in aggregation),
        "forward_samples" (forward passes of single samples outside of local steps, by
        `loss_matrix`, `class_sums`, `sample_features` and `count_forward`), "numbers_up" and
        "numbers_down" (int32, numbers sent beside the blocks of the model), "self_weight", see
        `self_weights`, and "concept" (int32), the number of each client's concept under drift.
      scalars: arrays [].
      up, down: int32 [N, num_blocks], copies of each block of the model that the client sent to
        and received from the server; the host multiplies them by the block sizes in 64 bits.
      matrices: by name, [N, N], [num_blocks, N, N] or [1, N]; results keep those of some rounds.
    """

    clients: dict[str, jax.Array]
    scalars: dict[str, jax.Array]
    up: jax.Array
    down: jax.Array
    matrices: dict[str, jax.Array]


def recorded(
    cohort: Cohort,
    block_sizes: np.ndarray,
    *,
    up: int | jax.Array,
    down: int | jax.Array,
    numbers_up: int | jax.Array | None = None,
    numbers_down: int | jax.Array | None = None,
    clients: Mapping[str, jax.Array],
    scalars: Mapping[str, jax.Array],
    everyone_mixes: bool,
    matrices: Mapping[str, jax.Array],
) -> Record:
    """Return the record of a round; see `Context.record` for the arguments."""
    took_part = cohort.mask | cohort.diverged

    def of_members(count: int | jax.Array) -> jax.Array:
        """Return counts int32 [M, ...]; a scalar holds for every client that took part."""
        array = jnp.asarray(count)
        integral = jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool
        require(integral, "A record's copies and numbers", f"{count}", "whole numbers")
        count = array.astype(jnp.int32)
        return count * took_part if count.ndim == 0 else count

    def copies(count: int | jax.Array) -> jax.Array:
        """Return copies per block, int32 [N, num_blocks]."""
        count = of_members(count)
        count = count if count.ndim == 2 else count[:, None]
        return cohort.spread(jnp.broadcast_to(count, (cohort.size, len(block_sizes))), 0)

    def full(matrix: jax.Array) -> jax.Array:
        """Expand a matrix to all clients: [..., N, N] or [1, N]."""
        if matrix.ndim > 1 and not everyone_mixes:
            return cohort.expand(matrix)
        single = matrix.ndim == 1
        matrix = matrix[None] if single else matrix
        if single or matrix.shape[-1] == cohort.size < cohort.num_clients:
            matrix = jnp.moveaxis(cohort.spread(jnp.moveaxis(matrix, -1, 0), 0), 0, -1)
        if single:
            return matrix
        own = ~jnp.any(matrix != 0, axis=-1, keepdims=True)  # the client kept its model
        return jnp.where(own, jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix)

    per_client = {
        "participated": cohort.spread(took_part, False),
        "diverged": cohort.spread(cohort.diverged, False),
        "local_steps": cohort.spread(cohort.steps, 0),
    }
    for name, count in (("numbers_up", numbers_up), ("numbers_down", numbers_down)):
        if count is not None:
            per_client[name] = cohort.spread(of_members(count), 0)
    members, everyone = cohort.size, cohort.num_clients
    rows = everyone if everyone_mixes else members
    for name, matrix in matrices.items():
        sizes = dict.fromkeys((members, everyone))
        fits = matrix.shape[-1:] in [(n,) for n in sizes] and matrix.shape[-2:-1] in ((), (rows,))
        fits = fits and matrix.shape[:-2] in ((), (len(block_sizes),))
        allowed = " or ".join([f"[{rows}, {n}]" for n in sizes] + [f"[{n}]" for n in sizes])
        require(fits, f"Shape of the matrix {name!r}", matrix.shape, f"{allowed} (per block)")
    known = self_weights(cohort, matrices, everyone_mixes, block_sizes)
    for name, value in {**known, **clients}.items():
        shape, allowed = jnp.shape(value), f"[{cohort.size}], one number for each member"
        require(shape in ((), (cohort.size,)), f"Shape of clients[{name!r}]", shape, allowed)
        per_client[name] = cohort.spread(jnp.where(cohort.mask, value, jnp.nan), jnp.nan)
    for name, value in scalars.items():
        require(jnp.ndim(value) == 0, f"Shape of scalars[{name!r}]", jnp.shape(value), "()")
    return Record(
        clients=per_client,
        scalars=dict(scalars),
        up=copies(up),
        down=copies(down),
        matrices={name: full(matrix) for name, matrix in matrices.items()},
    )


def packed(values: int | jax.Array, bits: int, width: int) -> int | jax.Array:
    """Count the numbers of `width` bits that hold `values` of `bits` bits each."""
    require_whole("bits", bits, 1)
    # Whole groups of `width` values first: values * bits may exceed int32.
    return values // width * bits + -(-(values % width) * bits // width)


def self_weights(
    cohort: Cohort,
    matrices: Mapping[str, jax.Array],
    everyone_mixes: bool,
    block_sizes: np.ndarray,
) -> dict[str, jax.Array]:
    """Return each member's weight on its own model, {"self_weight": [M]}.

    It is averaged over blocks in proportion to their shared elements, evenly without any. The
    weight is taken from the matrix "mixing", or from the only matrix, and divided by the sum of
    its row's absolute weights. It is 1 for a row of zeros, whose client keeps its model. A weight
    near 1 means local training. Without such a matrix the result is empty.
    """
    pairs = {name: matrix for name, matrix in matrices.items() if matrix.ndim > 1}
    if "mixing" not in pairs and len(pairs) != 1:
        return {}
    weights = pairs["mixing"] if "mixing" in pairs else next(iter(pairs.values()))
    positions = jnp.arange(cohort.size)
    members = cohort.maybe_static_rows
    rows = weights[..., members, :] if everyone_mixes else weights  # [..., M, M or N]
    column = members if rows.shape[-1] == cohort.num_clients else positions
    total = jnp.sum(jnp.abs(rows), axis=-1)
    own = jnp.where(total > 0, rows[..., positions, column] / jnp.where(total > 0, total, 1), 1)
    if own.ndim == 1:
        return {"self_weight": own}
    shares = jnp.asarray(block_sizes / block_sizes.sum(), own.dtype) if block_sizes.any() else None
    return {"self_weight": jnp.average(own, axis=0, weights=shares)}
