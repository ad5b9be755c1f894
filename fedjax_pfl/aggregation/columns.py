"""Work on whole stacks of models that devices share client by client.

To compare or mix all clients, no device needs whole models of all of them: each takes its part of
every model's columns, of all clients. A device then receives a stack's D-th part in place of the
stack, for D devices, and works on it alone; what it computed is added up, or goes back to the
clients' devices in the same way.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from fedjax_pfl.execution.mesh import AXIS, not_shared, shared_clients
from fedjax_pfl.utils.typing import Stack, Tree

WIDE = 2**14  # numbers of one client from which a leaf is sent alone; smaller ones go together
LARGE = 2**22  # numbers of a matrix from which no device has it whole: its rows go round
WHOLE = PartitionSpec()


class Part(NamedTuple):
    """Leaves that are sent together: one in its own shape, cut along `axis`; or several, flat."""

    leaves: tuple[int, ...]
    axis: int | None


def is_shared(*stacks: Stack) -> bool:
    """Whether a round's devices share the clients, and have rows enough of these stacks."""
    mesh = shared_clients()
    leaves = [leaf for stack in stacks for leaf in jax.tree.leaves(stack)]
    return mesh is not None and bool(leaves) and all(_is_enough(len(x), mesh) for x in leaves)


def _is_enough(rows: int, mesh: Mesh) -> bool:
    """Whether each device has some of so many rows, and what fills up the last ones is less."""
    return rows % mesh.shape[AXIS] == 0 or rows > mesh.shape[AXIS]


def added(fn: Callable[..., Tree], *stacks: Stack, others: tuple = ()) -> Tree:
    """`fn(*stacks, *others)` of stacks [M, ...] with as many leaves as each other.

    What `fn` returns must be a sum over columns: it is given lists of leaves with some columns of
    all rows, on each device others. Of a matrix each device then has some rows alone: of all pairs
    of clients it may be more than a model. Where `fn` returns large matrices alone, no device
    has all rows of its summand at a time: then a row must belong to that of the first stack.

    Where devices do not divide the rows, rows of zeros fill up the last ones.

    Args:
      fn: must not close over arrays.
      stacks: those that are the same are sent once.
      others: arrays that every device has.
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
    in_turns = all(by_rows) and not others and sum(x.size for x in results) >= LARGE
    counts = [len(leaves[0]) for leaves in distinct]

    def one_device(distinct, others):
        parts = _parts(distinct[0], [0] * len(distinct[0]), _devices())
        sent = [[_sent(part, leaves) for part in parts] for leaves in distinct]
        a, *more = ([_first(x, counts[k]) for x in sent[k]] for k in numbers)
        if in_turns:
            return _sums_in_turns(lambda rows: jax.tree.leaves(fn(rows, *more)), sent[numbers[0]])
        summands = jax.tree.leaves(fn(a, *more, *others))
        return [_summed(x, apart) for x, apart in zip(summands, by_rows, strict=True)]

    specs = [PartitionSpec(AXIS) if apart else WHOLE for apart in by_rows]
    sums = _on_devices(one_device, specs, distinct, others)
    pairs = zip(sums, results, strict=True)
    return treedef.unflatten([_first(x, len(like)) if like.ndim else x for x, like in pairs])


def _summed(x: jax.Array, by_rows: bool) -> jax.Array:
    """The devices' sum: whole, or each device's rows of it."""
    if by_rows:
        x = _filled(x, _devices())
        return lax.psum_scatter(x, AXIS, scatter_dimension=0, tiled=True)
    return lax.psum(x, AXIS)


def _sums_in_turns(
    fn: Callable[[list[jax.Array]], list[jax.Array]], a: list[jax.Array]
) -> list[jax.Array]:
    """The devices' sum of `fn(a)`, of which each device gets its own rows.

    Sums of a part of the rows go round: a device adds its summand, and hands them on to the next.
    """
    devices, mine = _devices(), lax.axis_index(AXIS)
    rows = len(a[0]) // devices

    def summands(whose):
        return fn([lax.dynamic_slice_in_dim(x, whose * rows, rows) for x in a])

    def turn(i, sums):
        sums = lax.ppermute(sums, AXIS, _onward(devices))
        return jax.tree.map(jnp.add, sums, summands((mine - 1 - i) % devices))

    return lax.fori_loop(1, devices, turn, summands((mine - 1) % devices))


def mixed(
    fn: Callable[[Any, jax.Array], jax.Array],
    weights: Tree,
    senders: Sequence[jax.Array],
    kinds: Sequence[Hashable],
    receivers: int,
) -> list[jax.Array]:
    """New leaves [A, ...] of leaves [B, ...]: `fn(weights of its kind, leaf)`, on some columns.

    Args:
      fn: must not close over arrays; a row of the weights gives a row of the result.
      weights: a dict of arrays [A, B] by kind. Every device gets them, those of large matrices
        by turns.
      senders: leaves that are shared (`is_shared`).
      kinds: of every leaf.
      receivers: A.
    """
    mesh = shared_clients()
    assert mesh is not None
    devices, count = mesh.shape[AXIS], len(senders[0])
    back = _is_enough(receivers, mesh)
    in_turns = back and sum(x.size for x in weights.values()) >= LARGE
    if in_turns:
        weights = jax.tree.map(lambda w: _filled(w, devices), weights)

    def one_device(senders, weights):
        parts = _parts(senders, kinds, _devices())
        kind_of = [kinds[part.leaves[0]] for part in parts]
        sent = (_first(_sent(part, senders), count) for part in parts)  # each when it is needed
        if in_turns:
            sent = list(sent)
            mine = _in_turns(
                lambda w: [fn(w[k], x) for k, x in zip(kind_of, sent, strict=True)], weights
            )
        else:
            mine = (fn(weights[k], x) for k, x in zip(kind_of, sent, strict=True))
        new: dict[int, jax.Array] = {}
        for part, columns in zip(parts, mine, strict=True):
            columns = _filled(columns, devices) if back else columns
            new |= _returned(part, columns, senders, back)
        return [new[i] for i in range(len(senders))]

    out, lie = (PartitionSpec(AXIS) if rows else WHOLE for rows in (back, in_turns))
    new = _on_devices(one_device, out, list(senders), weights, lie)
    return [_first(x, receivers) for x in new]


def _in_turns(fn: Callable[[Tree], list[jax.Array]], weights: Tree) -> list[jax.Array]:
    """`fn` of all devices' weights, rows below each other, of which a device has one part a turn.

    The parts go round: a device hands the one that it has used on to the next.
    """
    devices, mine = _devices(), lax.axis_index(AXIS)

    def put(new, weights, whose):
        rows = fn(weights)
        return [
            lax.dynamic_update_slice_in_dim(x, part, whose * len(part), axis=0)
            for x, part in zip(new, rows, strict=True)
        ]

    def turn(i, carry):
        weights, new = carry
        weights = lax.ppermute(weights, AXIS, _onward(devices))
        return weights, put(new, weights, (mine - i) % devices)

    shapes = jax.eval_shape(fn, weights)
    new = [jnp.zeros((devices * len(s), *s.shape[1:]), s.dtype) for s in shapes]
    return lax.fori_loop(1, devices, turn, (weights, put(new, weights, mine)))[1]


def _onward(devices: int) -> list[tuple[int, int]]:
    """From every device to the next, and from the last to the first."""
    return [(device, (device + 1) % devices) for device in range(devices)]


def _on_devices(
    fn: Callable[..., Any],
    out: Any,
    stacks: Any,
    others: Any,
    lie: PartitionSpec = WHOLE,
) -> Any:
    """`fn(stacks, others)` on every device, of its rows of the stacks; `others` lie as told.

    Of the stacks the last devices may have rows of zeros.
    """

    def alone(*operands):
        with not_shared():
            return fn(*operands)

    mesh = shared_clients()
    assert mesh is not None
    specs = (PartitionSpec(AXIS), lie)
    run = jax.shard_map(alone, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    return run(jax.tree.map(lambda x: _filled(x, mesh.shape[AXIS]), stacks), others)


def _filled(x: jax.Array, devices: int) -> jax.Array:
    """Rows [M, ...], filled up with zeros to a multiple of the devices."""
    more = -len(x) % devices
    return jnp.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)]) if more else x


def _first(x: jax.Array, count: int) -> jax.Array:
    """The reverse of `_filled`: the first rows [count, ...]."""
    return x if len(x) == count else x[:count]


def _devices() -> int:
    return lax.axis_size(AXIS)


def _parts(leaves: Sequence[jax.Array], kinds: Sequence[Hashable], devices: int) -> list[Part]:
    """Every leaf in one part; those of a part have the same kind and type."""
    parts, together = [], {}
    for i, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True)):
        axes = [axis for axis in range(1, leaf.ndim) if leaf.shape[axis] % devices == 0]
        if axes and math.prod(leaf.shape[1:]) >= WIDE:
            parts.append(Part((i,), axes[0]))
        else:
            together.setdefault((kind, leaf.dtype), []).append(i)
    return parts + [Part(tuple(each), None) for each in together.values()]


def _sent(part: Part, leaves: Sequence[jax.Array]) -> jax.Array:
    """The rows [M / D, ...] of a device's clients become some columns of all, [M, ...]."""
    if part.axis is not None:
        return lax.all_to_all(leaves[part.leaves[0]], AXIS, part.axis, 0, tiled=True)
    flat = [leaves[i].reshape(len(leaves[i]), -1) for i in part.leaves]
    flat = jnp.concatenate(flat, axis=1) if len(flat) > 1 else flat[0]
    flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % _devices())))
    return lax.all_to_all(flat, AXIS, 1, 0, tiled=True)


def _returned(
    part: Part, columns: jax.Array, leaves: Sequence[jax.Array], back: bool
) -> dict[int, jax.Array]:
    """Whole leaves of a part by number: of a device's receivers if they go `back`, else of all."""
    axis = 1 if part.axis is None else part.axis
    if back:
        whole = lax.all_to_all(columns, AXIS, 0, axis, tiled=True)
    else:
        whole = lax.all_gather(columns, AXIS, axis=axis, tiled=True)
    if part.axis is not None:
        return {part.leaves[0]: whole}
    result, start = {}, 0
    for i in part.leaves:
        shape = leaves[i].shape[1:]
        size = math.prod(shape)
        result[i] = whole[:, start : start + size].reshape(len(whole), *shape)
        start += size
    return result
