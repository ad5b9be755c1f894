"""A function over the rows of the client axis: one by one, in chunks, as lanes, over devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl import trees
from fedjax_pfl.execution.mesh import AXIS, mesh_of
from fedjax_pfl.execution.packing import ranks_of_devices
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.typing import Tree


def over_rows(
    fn: Callable[..., Any],
    operands: Tree,
    broadcast: Tree,
    execution: Execution,
    lengths: jax.Array | None = None,
) -> Tree:
    """Applies `fn` to every row of `operands` [M, ...] by the execution's strategy.

    Args:
      fn: `fn(row, broadcast)` takes one row of each leaf and returns a pytree.
      operands: leaves [M, ...].
      broadcast: arrays without a client axis that come out of training or of the state. With
        several devices `fn` must not close over them.
      lengths: [M] loop lengths; with chunks, rows of similar length share one, and devices are
        dealt rows of about the same total length.
    """

    def chunks(operands, broadcast, lengths):
        def one(row):
            return fn(row, broadcast)

        count = jax.tree.leaves(operands)[0].shape[0]
        lanes = min(execution.chunk or count, count)
        if lanes == 1:
            return lax.map(one, operands)
        if lanes == count:
            return jax.vmap(one)(operands)
        order = jnp.arange(count) if lengths is None else jnp.argsort(-lengths, stable=True)
        # lax.map runs the remainder of a division as a chunk of its own.
        done = lax.map(one, trees.take(operands, order), batch_size=lanes)
        return trees.take(done, jnp.argsort(order))

    return over_devices(chunks, operands, broadcast, execution, lengths)


def over_devices(
    fn: Callable[..., Any],
    operands: Tree,
    broadcast: Tree,
    execution: Execution,
    lengths: jax.Array | None = None,
) -> Tree:
    """Every device runs its share of the rows; no device waits for another in between.

    Args:
      fn: `fn(operands, broadcast, lengths)` of a share of the rows, one result a row.
    """
    devices = execution.devices
    if devices == 1:
        return fn(operands, broadcast, lengths)
    count = jax.tree.leaves(operands)[0].shape[0]
    ours = PartitionSpec(AXIS)
    run = jax.shard_map(
        fn,
        mesh=mesh_of(devices),
        in_specs=(ours, PartitionSpec(), ours),
        out_specs=ours,
        check_vma=False,
    )
    if count % devices == 0 and (lengths is None or not execution.deal):
        return run(operands, broadcast, lengths)
    order = jnp.arange(count) if lengths is None else jnp.argsort(-lengths, stable=True)
    slots = order[ranks_of_devices(count, devices).T.reshape(-1)]
    lengths = None if lengths is None else lengths[slots]
    done = run(trees.take(operands, slots), broadcast, lengths)
    back = jnp.zeros(count, jnp.int32).at[slots].set(jnp.arange(len(slots), dtype=jnp.int32))
    return trees.take(done, back)
