"""Mapping of a function over the client axis: one by one, in batches of lanes, over devices."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.data.federated import FederatedData, Split
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.execution.lane_assignment import ranks_of_devices
from fedjax_pfl.execution.mesh import CLIENTS, execution_mesh, not_shared
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.typing import Rows, Tree


class RowDevices(NamedTuple):
    """Devices on which rows must run, because only these have their samples.

    Attributes:
      device: int32 [M], the device that has each row's samples; None if rows are in order, `most`
        on each device and the rest on the last ones.
      most: the largest number of distinct rows of a device, which has so many slots. Rows beyond
        these, which repeat others as padding does, get another row's result; the caller drops it.
    """

    device: jax.Array | None
    most: int


def row_devices_of(data: FederatedData, rows: Rows) -> RowDevices | None:
    """Return the devices on which clients must run; None if every device has all samples.

    All clients in order are best given as a NumPy array: nothing then moves between devices.

    Raises:
      RowsNotOnDevice: the samples of some are not on the device.
    """
    data.require_rows(rows)
    if data.shards == 1:
        return None
    if isinstance(rows, np.ndarray) and np.array_equal(rows, np.arange(data.num_clients)):
        return RowDevices(None, data.share)
    return RowDevices(jnp.asarray(data.shard_of(rows), jnp.int32), data.share)


def over_rows(
    fn: Callable[..., Any],
    operands: Tree,
    broadcast: Tree,
    execution: Execution,
    lengths: jax.Array | None = None,
    row_devices: RowDevices | None = None,
) -> Tree:
    """Apply `fn` to every row of `operands` [M, ...] by the execution's strategy.

    Args:
      fn: `fn(row, broadcast)` takes one row of each leaf and returns a pytree.
      operands: leaves [M, ...].
      broadcast: arrays without a client axis. With several devices `fn` must not close over arrays.
      lengths: [M] loop lengths; in batches, rows of similar length share one, and devices are
        dealt rows of about the same total length.
      row_devices: the devices that must run the rows, or None where any may.
    """

    def batched(operands, broadcast, lengths, used):
        def one(row):
            return fn(row, broadcast)

        if used is not None and execution.max_lanes == 1:
            return lax.map(_skipping(one), (used, operands))
        count = jax.tree.leaves(operands)[0].shape[0]
        lanes = min(execution.max_lanes or count, count)
        if lanes == 1:
            return lax.map(one, operands)
        if lanes == count:
            return jax.vmap(one)(operands)
        # lax.map runs the remainder of a division as a batch of its own.
        by_batches = partial(lax.map, one, batch_size=lanes)
        if lengths is None:  # without a gather, which compilers do not recognize as the identity
            return by_batches(operands)
        order = jnp.argsort(-lengths, stable=True)
        return trees.take(by_batches(trees.take(operands, order)), jnp.argsort(order))

    return over_devices(batched, operands, broadcast, execution, lengths, row_devices)


def _skipping(one: Callable[[Tree], Tree]) -> Callable[[tuple[jax.Array, Tree]], Tree]:
    """Return `one` for (whether the row is used, the row), with zeros for unused rows."""

    def maybe(operand):
        used, row = operand
        shapes = jax.eval_shape(one, row)
        return lax.cond(
            used, one, lambda _: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), row
        )

    return maybe


def over_devices(
    fn: Callable[..., Any],
    operands: Tree,
    broadcast: Tree,
    execution: Execution,
    lengths: jax.Array | None = None,
    row_devices: RowDevices | None = None,
) -> Tree:
    """Run each device's share of the rows on it, independently.

    Args:
      fn: `fn(operands, broadcast, lengths, used)` of a share of the rows returns a result for each
        row. `used`, bool [share], is False for padding, whose results are dropped; None if all are
        used.
      row_devices: the devices that must run the rows, or None where any may.
    """
    devices = execution.devices
    if devices == 1:
        return fn(operands, broadcast, lengths, None)
    count = jax.tree.leaves(operands)[0].shape[0]
    ours = PartitionSpec(CLIENTS)

    specs = jax.tree.map(_specs, broadcast, is_leaf=lambda x: isinstance(x, FederatedData | Split))

    def on_one_device(*given):
        with not_shared():
            return fn(*given)

    run = jax.shard_map(
        on_one_device,
        mesh=execution_mesh(execution),
        in_specs=(ours, specs, ours, ours),
        out_specs=ours,
        check_vma=False,
    )
    if row_devices is not None and row_devices.device is not None:
        most = min(count, row_devices.most)
        slots, used, back = _slots_by_device(row_devices.device, most, devices)
        lengths = None if lengths is None else jnp.where(used, lengths[slots], 0)
        done = run(trees.take(operands, slots), broadcast, lengths, used)
        return trees.take(done, back)
    if row_devices is not None or lengths is None or not execution.deal:
        return _in_order(run, operands, broadcast, lengths, -count % devices)
    order = jnp.argsort(-lengths, stable=True)
    slots = order[ranks_of_devices(count, devices).T.reshape(-1)]
    done = run(trees.take(operands, slots), broadcast, lengths[slots], None)
    back = jnp.zeros(count, jnp.int32).at[slots].set(jnp.arange(len(slots), dtype=jnp.int32))
    return trees.take(done, back)


def _in_order(
    run: Callable[..., Any], operands: Tree, broadcast: Tree, lengths: jax.Array | None, more: int
) -> Tree:
    """Return the results [M] of `run`, with `more` unused rows added on the last devices."""
    if more == 0:
        return run(operands, broadcast, lengths, None)
    count = jax.tree.leaves(operands)[0].shape[0]
    operands, lengths = jax.tree.map(lambda x: _filled(x, more), (operands, lengths))
    done = run(operands, broadcast, lengths, jnp.arange(count + more) < count)
    return jax.tree.map(lambda x: x[:count], done)


def _filled(rows: jax.Array, more: int) -> jax.Array:
    """Pad rows [M, ...] with `more` zero rows; concatenation would replicate them."""
    if jnp.issubdtype(rows.dtype, jax.dtypes.extended):
        return jnp.concatenate([rows, jnp.broadcast_to(rows[:1], (more, *rows.shape[1:]))])
    return jnp.pad(rows, [(0, more), *[(0, 0)] * (rows.ndim - 1)])


def _specs(node: Any) -> Any:
    """Return partition specs of an argument without a client axis: replicated or divided."""
    whole = jax.tree.map(lambda _: PartitionSpec(), node)
    if isinstance(node, Split) and node.shards > 1:
        return replace(whole, index=PartitionSpec(CLIENTS))
    if isinstance(node, FederatedData):
        splits = {name: _specs(node.split(name)) for name in SPLITS}
        pool = PartitionSpec(CLIENTS) if node.shards > 1 else PartitionSpec()
        return replace(whole, samples=pool, labels=pool, **splits)
    return whole


def _slots_by_device(
    device: jax.Array, most: int, devices: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (row per slot, whether the slot is used, slot per row) for rows of a `device` [M].

    Every device has `most` slots, the first ones for its rows.
    """
    count = device.shape[0]
    order = jnp.argsort(device, stable=True).astype(jnp.int32)
    numbers = jnp.arange(devices, dtype=device.dtype)
    first, end = (jnp.searchsorted(device[order], numbers, side=side) for side in ("left", "right"))
    place = first[:, None] + jnp.arange(most)
    used = (place < end[:, None]).reshape(-1)
    last = jnp.clip(end - 1, 0, count - 1)  # stands in where a slot is left over
    slots = order[jnp.minimum(place, last[:, None])].reshape(-1)
    back = (
        jnp.zeros(count, jnp.int32)
        .at[jnp.where(used, slots, count)]
        .set(jnp.arange(devices * most, dtype=jnp.int32), mode="drop")
    )
    return slots, used, back
