"""Local loops over each client's own samples, without padding to a common length."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_pfl.data.federated import Batch, FederatedData, Split
from fedjax_pfl.execution.packed_vmap import Loop, run_loops
from fedjax_pfl.execution.rows import row_devices_of
from fedjax_pfl.federation.augmentation import Augmentation, augmented
from fedjax_pfl.federation.batching import Schedule, floor_div, order_key, step_key
from fedjax_pfl.federation.client import Calls, Client
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Rows, Tree

# step(carry, batches, rng, broadcast, client) -> carry
Step = Callable[[Tree, Any, jax.Array, Tree, Client], Tree]


class ClientRuns(NamedTuple):
    """The results of `run_clients`.

    Attributes:
      carry: [M, ...]. If a client's final carry is not finite, or too large for its squares to be
        summed, its initial carry is returned, so that distances between clients and adaptive
        servers stay finite.
      finite: bool [M], False for such clients (`trees.squares_fit`).
      steps: int32 [M], calls of each client's `step`; 0 for inactive clients.
    """

    carry: Tree
    finite: jax.Array
    steps: jax.Array


class _Lane(NamedTuple):
    """One client's row, initial carry, operand, first step and number of steps.

    The carry is () if all clients share it. `start` None is 0; `steps` None is the schedule's.
    """

    row: jax.Array
    carry: Tree
    operand: Tree
    start: jax.Array | None
    steps: jax.Array | None


class _Common(NamedTuple):
    """Operands of all clients: initial carry or None, broadcasts, data, split, the round's key."""

    carry: Tree
    broadcast: Tree
    data: FederatedData
    part: Split
    key: jax.Array


class _Span(NamedTuple):
    """A client's number of samples, steps per order, first step, and the step after its last."""

    size: jax.Array
    per_order: jax.Array
    start: jax.Array
    stop: jax.Array


class _Position(NamedTuple):
    """State of one client's loop: the next step, the epoch's end and order, and the carry.

    The order holds positions of the client's samples in the pool, `drawn` the size of a Poisson
    minibatch.
    """

    k: jax.Array
    end: jax.Array
    order: jax.Array
    value: Tree
    drawn: jax.Array | None


@dataclass(frozen=True)
class _ClientLoop:
    """One client's loop over its samples: an epoch is a segment, a minibatch a step.

    Attributes:
      common: shared operands, on the device where the loop runs.
      step, schedule, finish: see `run_clients`.
      dtype: type of the models' inputs.
      augment: data augmentation, or None.
      together: whether all clients begin with the same carry.
      platform: platform of the program.
      number: of the loop in its round.
    """

    common: _Common
    step: Step
    schedule: Schedule
    finish: Callable[[Tree, Client], Tree] | None
    dtype: str
    augment: Augmentation | None
    together: bool
    platform: str
    number: int = 0

    def loop(self) -> Loop:
        return Loop(
            begin=self._begin,
            enter=self._enter,
            inside=lambda lane, at: at.k < at.end,
            unfinished=lambda lane, at: at.k < self._span(lane).stop,
            step=self._step,
            finish=self._finish,
        )

    def _span(self, lane: _Lane) -> _Span:
        # If all sizes are equal, the size does not depend on the row.
        part = self.common.part
        size = part.size[0] if part.equal else part.size[lane.row]
        count = self.schedule.total_steps(size) if lane.steps is None else lane.steps
        start = jnp.int32(0) if lane.start is None else lane.start
        per_order = jnp.maximum(self.schedule.steps_per_order(size), 1)
        return _Span(size, per_order, start, start + count)

    def _client(self, lane: _Lane, k: jax.Array, calls: Calls | None = None) -> Client:
        span, data = self._span(lane), self.common.data
        return Client(
            row=lane.row,
            id=data.ids[lane.row],
            size=span.size,
            class_counts=data.class_counts[lane.row],
            num_steps=span.stop - span.start,
            step=k - span.start,
            operand=lane.operand,
            batch_size=self.schedule.expected_batch(span.size),
            calls=calls,
        )

    def _first(self, lane: _Lane, common: _Common) -> Tree:
        return common.carry if self.together else lane.carry

    def _begin(self, lane: _Lane, common: _Common) -> _Position:
        start = self._span(lane).start
        order = jnp.zeros(self.common.part.capacity, jnp.int32)
        first = self._first(lane, common)
        if self.together and self.platform == "tpu":
            # As part of a fusion, the copies for all lanes take half the time of a broadcast.
            first = jax.tree.map(lambda x: jnp.where(lane.row >= 0, x, jnp.zeros_like(x)), first)
        drawn = jnp.int32(0) if self.schedule.poisson else None
        return _Position(start, start, order, first, drawn)

    def _enter(self, lane: _Lane, at: _Position) -> _Position:
        span = self._span(lane)
        epoch = floor_div(at.k, span.per_order)
        part, data = self.common.part, self.common.data
        key = order_key(self.common.key, data.ids[lane.row], epoch)
        positions = self.schedule.order(key, span.size, part.capacity)
        positions = jnp.where(positions < span.size, positions, 0)
        order = data.pool_indices(part, lane.row, positions)  # once, not in each step
        end = jnp.minimum((epoch + 1) * span.per_order, span.stop)
        if self.schedule.poisson:
            drawn = self.schedule.drawn(key, span.size, part.capacity)
            at = at._replace(drawn=drawn)
        return at._replace(end=end, order=order)

    def _step(self, lane: _Lane, common: _Common, at: _Position) -> _Position:
        span = self._span(lane)
        within = at.k - floor_div(at.k, span.per_order) * span.per_order
        count = span.size if at.drawn is None else at.drawn
        pool, valid = self.schedule.positions(at.order, within, count)
        rng = step_key(self.common.key, self.common.data.ids[lane.row], at.k)
        batches = tuple(
            self._fetch(lane, pool[m], valid[m], rng, m)
            for m in range(self.schedule.batches_per_step)
        )
        client = self._client(lane, at.k, Calls(batches, rng, self.number))
        batches = batches[0] if len(batches) == 1 else batches
        value = self.step(at.value, batches, rng, common.broadcast, client)
        return at._replace(k=at.k + 1, value=value)

    def _fetch(self, lane: _Lane, pool, valid, rng: jax.Array, number: int) -> Batch:
        augment = None
        if self.augment is not None:
            augment = partial(augmented, self.augment, keys.derive(rng, f"augment/{number}"))
        data, dtype = self.common.data, self.dtype
        return data.batch(lane.row, pool, valid, dtype, augment)

    def _finish(self, lane: _Lane, common: _Common, at: _Position) -> ClientRuns:
        span, first = self._span(lane), self._first(lane, common)
        finite = trees.squares_fit(at.value)
        last = jax.tree.map(lambda new, old: jnp.where(finite, new, old), at.value, first)
        last = last if self.finish is None else self.finish(last, self._client(lane, span.stop))
        return ClientRuns(last, finite, at.k - span.start)


def run_clients(
    federation: Federation,
    step: Step,
    carry: Tree | Broadcast,
    *,
    rows: Rows,
    key: jax.Array,
    schedule: Schedule,
    broadcast: Tree = None,
    operands: Tree = None,
    split: str | Split = "train",
    active: jax.Array | None = None,
    cursor: jax.Array | None = None,
    epochs: jax.Array | None = None,
    finish: Callable[[Tree, Client], Tree] | None = None,
) -> ClientRuns:
    """Run a local loop on each of the given clients, over its own samples and number of steps.

    Args:
      federation: the clients.
      step: `step(carry, batches, rng, broadcast, client) -> carry`. `batches` is one `Batch`, or a
        tuple if the schedule has several batches per step; `carry` is any pytree.
      carry: initial carries [M, ...], or `Broadcast(tree)` if all clients begin with the same one.
      rows: int32 [M], rows of the client axis; may be traced. Pass all clients in order as a NumPy
        array (`Cohort.maybe_static_rows`).
      key: key of the round and purpose; permanent client ids are folded in.
      schedule: batches and their order.
      broadcast: operands without a client axis, passed to every step.
      operands: read-only operands of each client, leaves [M, ...], passed as `client.operand`.
      split: "train", "validation" or "test", or a `Split`, such as a window of one. Only "train" is
        augmented.
      active: bool [M]; other clients take no step and keep their carry.
      cursor: int32 [M], steps taken before; unshuffled schedules continue there.
      epochs: int32 [M], epochs of each client, cut to the schedule's (the default).
      finish: `finish(carry, client)` maps a client's final carry to its result.

    Raises:
      TypeError: a stack does not lead with one row for each of `rows`.
    """
    if not isinstance(carry, Broadcast):
        trees.check_rows("the first carry of local work", carry, rows.shape[0])
    trees.check_rows("operands of local work", operands, rows.shape[0])
    row_devices, given = row_devices_of(federation.data, rows), rows
    rows = jnp.asarray(rows)
    part = federation.data.split(split)
    if schedule.poisson and schedule.batches_per_step > 1:
        raise InputError(
            f"This algorithm takes {schedule.batches_per_step} minibatches in a step, and "
            "batch_order 'poisson' draws one: take another batch_order."
        )
    schedule.check_counts(part.capacity)  # sizes below are traced, and products of them wrap
    schedule = schedule.fitting(part.capacity)
    sizes = part.size[rows]
    if epochs is None and active is None and part.equal:
        steps = None  # an unbatched trip count: lanes end together, without a select
    else:
        steps = schedule.total_steps(sizes)
        if epochs is not None:
            asked = (epochs * schedule.steps_per_epoch(sizes)).astype(steps.dtype)
            steps = jnp.minimum(asked, steps)  # which privacy counts on
        steps = steps if active is None else jnp.where(active, steps, 0)
    together = isinstance(carry, Broadcast)
    lanes = _Lane(rows, () if together else carry, operands, cursor, steps)
    begun = carry.model if together else None
    common = _Common(begun, broadcast, federation.data, part, key)

    privacy = federation.sample_privacy
    observer = None if privacy is None else privacy.observer
    number = 0 if observer is None else observer.next_loop()

    def loop(common: _Common) -> Loop:
        return _ClientLoop(
            common=common,
            step=step,
            schedule=schedule,
            finish=finish,
            dtype=federation.task.dtype,
            augment=federation.training.augmentation if split == "train" else None,
            together=together,
            platform=federation.execution.platform,
            number=number,
        ).loop()

    runs = run_loops(loop, lanes, common, federation.execution, steps, row_devices)
    if observer is not None:
        observer.count_gradients(given, runs.steps, federation.num_clients)
    return runs
