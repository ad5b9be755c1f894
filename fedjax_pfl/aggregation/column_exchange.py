"""Column exchange, to compare and mix stacks of models that are sharded by client.

No device needs complete models of all clients: each receives a part of the columns of all clients
in an all-to-all, 1/D of the stack for D devices, and processes it independently. Results are summed
over devices, or returned to the clients' devices by a second exchange.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from fedjax_pfl.execution.mesh import CLIENTS, not_shared, shared_clients
from fedjax_pfl.utils.typing import Stack, Tree

WIDE = 2**14  # elements per client from which a leaf is sent separately
WHOLE = PartitionSpec()


class Part(NamedTuple):
    """Leaves that are sent together: one leaf divided along `axis`, or several flattened leaves."""

    leaves: tuple[int, ...]
    axis: int | None


def is_shared(*stacks: Stack) -> bool:
    """Return whether clients are sharded, and each device has rows of these stacks."""
    mesh = shared_clients()
    leaves = [leaf for stack in stacks for leaf in jax.tree.leaves(stack)]
    return mesh is not None and bool(leaves) and all(_is_enough(len(x), mesh) for x in leaves)


def _is_enough(rows: int, mesh: Mesh) -> bool:
    """Return whether each device has some of a number of rows, with little padding."""
    return rows % mesh.shape[CLIENTS] == 0 or rows > mesh.shape[CLIENTS]


def sum_over_columns(fn: Callable[..., Tree], *stacks: Stack, others: tuple = ()) -> Tree:
    """Compute `fn(*stacks, *others)`, a sum over columns of stacks [M, ...].

    On each device `fn` receives lists of leaves with different columns of all rows, and its results
    are summed. Matrices are sharded by rows, as those of all pairs of clients may be larger than a
    model. Rows are padded with zeros if necessary.

    Args:
      fn: function that must not close over arrays.
      *stacks: stacks with equal numbers of leaves; identical stacks are sent once.
      others: arrays that are replicated on every device.
    """
    if not is_shared(*stacks):
        return fn(*stacks, *others)
    distinct = list({id(stack): jax.tree.leaves(stack) for stack in stacks}.values())
    place = {id(stack): None for stack in stacks}
    numbers = [list(place).index(id(stack)) for stack in stacks]
    results, treedef = jax.tree.flatten(jax.eval_shape(fn, *stacks, *others))
    mesh = shared_clients()
    assert mesh is not None
    by_rows = [x.ndim == 2 and _is_enough(len(x), mesh) for x in results]
    counts = [len(leaves[0]) for leaves in distinct]

    def one_device(distinct, others):
        parts = _parts(distinct[0], [0] * len(distinct[0]), _devices())
        sent = [[_sent(part, leaves) for part in parts] for leaves in distinct]
        a, *more = ([_first(x, counts[k]) for x in sent[k]] for k in numbers)
        summands = jax.tree.leaves(fn(a, *more, *others))
        return [_summed(x, apart) for x, apart in zip(summands, by_rows, strict=True)]

    specs = [PartitionSpec(CLIENTS) if apart else WHOLE for apart in by_rows]
    sums = _per_device(one_device, specs, distinct, others)
    pairs = zip(sums, results, strict=True)
    return treedef.unflatten([_first(x, len(like)) if like.ndim else x for x, like in pairs])


def _summed(x: jax.Array, by_rows: bool) -> jax.Array:
    """Sum over devices; the result is replicated or sharded by rows."""
    if by_rows:
        x = _filled(x, _devices())
        return lax.psum_scatter(x, CLIENTS, scatter_dimension=0, tiled=True)
    return lax.psum(x, CLIENTS)


def mixed(
    fn: Callable[[Any, jax.Array], jax.Array],
    weights: Tree,
    senders: Sequence[jax.Array],
    kinds: Sequence[Hashable],
    receivers: int,
) -> list[jax.Array]:
    """Mix leaves [B, ...] to [A, ...] by `fn(weights of its kind, leaf)` on parts of the columns.

    Args:
      fn: function that must not close over arrays; it maps rows of weights to rows of the result.
      weights: dict of arrays [A, B] by kind, replicated.
      senders: sharded leaves (`is_shared`).
      kinds: kind of every leaf.
      receivers: A.
    """
    mesh = shared_clients()
    assert mesh is not None
    devices, count = mesh.shape[CLIENTS], len(senders[0])
    back = _is_enough(receivers, mesh)

    def one_device(senders, weights):
        parts = _parts(senders, kinds, _devices())
        kind_of = [kinds[part.leaves[0]] for part in parts]
        new: dict[int, jax.Array] = {}
        for part, kind in zip(parts, kind_of, strict=True):
            columns = fn(weights[kind], _first(_sent(part, senders), count))
            columns = _filled(columns, devices) if back else columns
            new |= _returned(part, columns, senders, back)
        return [new[i] for i in range(len(senders))]

    out = PartitionSpec(CLIENTS) if back else WHOLE
    new = _per_device(one_device, out, list(senders), weights)
    return [_first(x, receivers) for x in new]


def _per_device(fn: Callable[..., Any], out: Any, stacks: Any, others: Any) -> Any:
    """Apply `fn(stacks, others)` on every device to its rows of the stacks, padded with zeros."""

    def on_one_device(*operands):
        with not_shared():
            return fn(*operands)

    mesh = shared_clients()
    assert mesh is not None
    specs = (PartitionSpec(CLIENTS), WHOLE)
    run = jax.shard_map(on_one_device, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    return run(jax.tree.map(lambda x: _filled(x, mesh.shape[CLIENTS]), stacks), others)


def _filled(x: jax.Array, devices: int) -> jax.Array:
    """Pad rows [M, ...] with zeros to a multiple of the devices."""
    more = -len(x) % devices
    return jnp.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)]) if more else x


def _first(x: jax.Array, count: int) -> jax.Array:
    """Invert `_filled`: return the first rows [count, ...]."""
    return x if len(x) == count else x[:count]


def _devices() -> int:
    return lax.axis_size(CLIENTS)


def _parts(leaves: Sequence[jax.Array], kinds: Sequence[Hashable], devices: int) -> list[Part]:
    """Group leaves into parts of the same kind and type."""
    parts, together = [], {}
    for i, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True)):
        axes = [axis for axis in range(1, leaf.ndim) if leaf.shape[axis] % devices == 0]
        if axes and math.prod(leaf.shape[1:]) >= WIDE:
            parts.append(Part((i,), axes[0]))
        else:
            together.setdefault((kind, leaf.dtype), []).append(i)
    return parts + [Part(tuple(each), None) for each in together.values()]


def _sent(part: Part, leaves: Sequence[jax.Array]) -> jax.Array:
    """Exchange the rows [M / D, ...] of a device for some columns of all rows, [M, ...]."""
    if part.axis is not None:
        return lax.all_to_all(leaves[part.leaves[0]], CLIENTS, part.axis, 0, tiled=True)
    flat = [leaves[i].reshape(len(leaves[i]), -1) for i in part.leaves]
    flat = jnp.concatenate(flat, axis=1) if len(flat) > 1 else flat[0]
    flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % _devices())))
    return lax.all_to_all(flat, CLIENTS, 1, 0, tiled=True)


def _returned(
    part: Part, columns: jax.Array, leaves: Sequence[jax.Array], back: bool
) -> dict[int, jax.Array]:
    """Return a part's leaves by index: of the device's receivers if `back`, else of all."""
    axis = 1 if part.axis is None else part.axis
    if back:
        complete = lax.all_to_all(columns, CLIENTS, 0, axis, tiled=True)
    else:
        complete = lax.all_gather(columns, CLIENTS, axis=axis, tiled=True)
    if part.axis is not None:
        return {part.leaves[0]: complete}
    result, start = {}, 0
    for i in part.leaves:
        shape = leaves[i].shape[1:]
        size = math.prod(shape)
        result[i] = complete[:, start : start + size].reshape(len(complete), *shape)
        start += size
    return result
