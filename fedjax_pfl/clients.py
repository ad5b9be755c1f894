"""What every client does on its own: a local loop of its true length over its own samples."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import keys, trees
from fedjax_pfl.data.federated import Batch
from fedjax_pfl.execution import over_rows
from fedjax_pfl.schedules import Schedule, client_key
from fedjax_pfl.structs import struct

if TYPE_CHECKING:
    from fedjax_pfl.federation import Federation

Tree = Any


@struct
class Shared:
    """One model standing for all clients: it has no client axis and is never copied per client."""

    model: Tree


@struct
class Client:
    """What a local step may know about its client.

    Attributes:
      row: int32, position on the client axis.
      id: int32, permanent id.
      size: int32, samples of the split that is walked.
      class_counts: int32 [C], training samples of each class.
      num_steps: int32, local steps it takes in all.
      step: int32, steps taken before this one.
      operand: the client's row of `operands`.
    """

    row: jax.Array
    id: jax.Array
    size: jax.Array
    class_counts: jax.Array
    num_steps: jax.Array
    step: jax.Array
    operand: Tree


class Walked(NamedTuple):
    """What `run_clients` returns.

    Attributes:
      carry: [M, ...]. A client whose carry is not finite at the end gets back the one that it began
        with: no NaN leaves the executor.
      finite: bool [M].
      steps: int32 [M], how often each client's `step` was called; 0 for the inactive.
    """

    carry: Tree
    finite: jax.Array
    steps: jax.Array


def run_clients(
    federation: "Federation",
    step: Callable[[Tree, Any, jax.Array, Tree, Client], Tree],
    carry: Tree | Shared,
    *,
    rows: jax.Array,
    key: jax.Array,
    schedule: Schedule,
    shared: Tree = None,
    operands: Tree = None,
    split: str = "train",
    active: jax.Array | None = None,
    cursor: jax.Array | None = None,
    finish: Callable[[Tree, Client], Tree] | None = None,
) -> Walked:
    """Runs a local loop on every named client, each over its own samples and number of steps.

    Args:
      federation: the clients.
      step: `step(carry, batches, rng, shared, client) -> carry`. `batches` is one `Batch`, or a
        tuple of them where the schedule hands out several; `carry` is any pytree.
      carry: leaves [M, ...], or `Shared(tree)` where all clients begin from the same.
      rows: int32 [M], rows of the client axis; traced, any length, one included.
      key: key of the round and purpose; the executor folds in permanent ids.
      schedule: which batches in which order.
      shared: operands without a client axis, handed to every step.
      operands: read-only operands of each client, leaves [M, ...]; found in `client.operand`.
      split: "train", "validation" or "test".
      active: bool [M]; the others take no step and keep their carry.
      cursor: int32 [M], steps taken before, for unshuffled schedules that go on where they were.
      finish: `finish(carry, client)` makes what is returned of a client's last carry, and of its
        first where it diverged.
    """
    data = federation.data
    part = data.split(split)
    schedule = schedule.fitting(part.capacity)
    augmentation = federation.augment if split == "train" else None
    sizes = part.size[rows]
    if active is None and part.equal:
        steps = None  # unbatched trip counts: no lane waits, nothing is selected
    else:
        steps = schedule.total_steps(sizes)
        steps = steps if active is None else jnp.where(active, steps, 0)
    given = () if isinstance(carry, Shared) else carry
    lane_operands = (rows, given, operands, cursor, steps)

    def lane(lane_operand, common):
        row, begin, operand, start, num_steps = lane_operand
        model, shared = common
        begin = model if isinstance(carry, Shared) else begin
        # Where all sizes are equal any client's is known without looking at the row.
        size = part.size[0] if part.equal else part.size[row]
        num_steps = schedule.total_steps(size) if num_steps is None else num_steps
        per_epoch = jnp.maximum(schedule.steps_per_epoch(size), 1)
        start = jnp.int32(0) if start is None else start
        stop = start + num_steps
        order_key, step_key = client_key(key, data.ids[row])

        def client_at(k):
            return Client(
                row=row,
                id=data.ids[row],
                size=size,
                class_counts=data.class_counts[row],
                num_steps=num_steps,
                step=k - start,
                operand=operand,
            )

        def epoch(state):
            k, _ = state
            number = k // per_epoch
            order = schedule.order(order_key, number, size, part.capacity)
            end = jnp.minimum((number + 1) * per_epoch, stop)

            def one(state):
                k, value = state
                at, valid = schedule.positions(order, k - number * per_epoch, size)
                rng = jax.random.fold_in(step_key, k)

                def batch(m):
                    augment = None
                    if augmentation is not None:
                        augment = partial(augmentation, keys.derive(rng, f"augment/{m}"))
                    return data.fetch(part, row, at[m], valid[m], federation.task.dtype, augment)

                batches = tuple(batch(m) for m in range(schedule.batches_per_step))
                batches = batches[0] if len(batches) == 1 else batches
                return k + 1, step(value, batches, rng, shared, client_at(k))

            return lax.while_loop(lambda state: state[0] < end, one, state)

        end, last = lax.while_loop(lambda state: state[0] < stop, epoch, (start, begin))
        finite = trees.is_finite(last)
        last = jax.tree.map(lambda new, old: jnp.where(finite, new, old), last, begin)
        last = last if finish is None else finish(last, client_at(stop))
        return Walked(last, finite, end - start)

    common = (carry.model if isinstance(carry, Shared) else None, shared)
    return over_rows(lane, lane_operands, common, federation.execution, steps)


__all__ = ["Batch", "Client", "Shared", "Walked", "run_clients"]
