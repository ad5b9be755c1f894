"""Loops of unequal length, one per client, packed into the lanes of a vmap."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.execution.rows import RowDevices, over_devices, over_rows
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.typing import Tree


class Loop(NamedTuple):
    """Loop of every row, in segments (a client's epochs) of steps.

    All functions take one row; vmap turns rows into lanes.

    Attributes:
      begin: `begin(row, broadcast) -> state`.
      enter: `enter(row, state) -> state` at the beginning of each segment. Called again within a
        segment, it changes nothing.
      inside: `inside(row, state) -> bool`: whether this segment has another step.
      unfinished: `unfinished(row, state) -> bool`: whether the row has another step.
      step: `step(row, broadcast, state) -> state`.
      finish: `finish(row, broadcast, state)`: the result of a row.
      unit: the name of its steps, in profiles.
    """

    begin: Callable[..., Any]
    enter: Callable[..., Any]
    inside: Callable[..., Any]
    unfinished: Callable[..., Any]
    step: Callable[..., Any]
    finish: Callable[..., Any]
    unit: str = "steps"

    def run_row(self, row: Tree, broadcast: Tree) -> Tree:
        """Run one row from its first to its last step."""

        def segment(state):
            entered = self.enter(row, state)
            with jax.named_scope(self.unit):
                return lax.while_loop(
                    partial(self.inside, row), lambda s: self.step(row, broadcast, s), entered
                )

        first = self.begin(row, broadcast)
        with jax.named_scope("segments"):
            last = lax.while_loop(partial(self.unfinished, row), segment, first)
        return self.finish(row, broadcast, last)

    def of_used(self) -> "Loop":
        """Return the loop of rows (whether the row is used, row); unused ones take no step."""
        return self._replace(
            begin=lambda row, broadcast: self.begin(row[1], broadcast),
            enter=lambda row, state: self.enter(row[1], state),
            inside=lambda row, state: row[0] & self.inside(row[1], state),
            unfinished=lambda row, state: row[0] & self.unfinished(row[1], state),
            step=lambda row, broadcast, state: self.step(row[1], broadcast, state),
            finish=lambda row, broadcast, state: self.finish(row[1], broadcast, state),
        )


def run_loops(
    make: Callable[[Any], Loop],
    operands: Tree,
    broadcast: Tree,
    execution: Execution,
    lengths: jax.Array | None,
    row_devices: RowDevices | None = None,
) -> Tree:
    """Run the loop of every row of `operands` [M, ...]; see `over_rows`.

    Args:
      make: `make(broadcast)` gives the loop, on the device where it runs.
      lengths: [M] lengths of the rows' loops in any unit, or None where all are equal.
      row_devices: see `over_rows`.
    """
    count = jax.tree.leaves(operands)[0].shape[0]
    lanes = execution.lanes(count)
    if lengths is None and row_devices is not None and row_devices.device is not None:
        lengths = jnp.ones(count, jnp.int32)  # some devices have fewer rows than others
    if lengths is not None and lanes > 1:

        def share(operands, broadcast, lengths, used):
            loop = make(broadcast)
            if used is not None:
                loop, operands = loop.of_used(), (used, operands)
            if lanes == lengths.shape[0]:
                return _side_by_side(loop, operands, broadcast)
            return _packed(loop, operands, broadcast, lengths, lanes)

        return over_devices(share, operands, broadcast, execution, lengths, row_devices)

    def one_row(row, broadcast):
        return make(broadcast).run_row(row, broadcast)

    one_by_one = execution if lengths is None else replace(execution, max_lanes=1)
    return over_rows(one_row, operands, broadcast, one_by_one, lengths, row_devices)


def _lanes_of(loop: Loop) -> Loop:
    """Return the loop whose functions take several rows at once, with a common `broadcast`."""
    enter, inside, unfinished = map(jax.vmap, (loop.enter, loop.inside, loop.unfinished))
    step, finish = (jax.vmap(f, (0, None, 0)) for f in (loop.step, loop.finish))
    return Loop(jax.vmap(loop.begin, (0, None)), enter, inside, unfinished, step, finish, loop.unit)


def _turn(lanes: Loop, rows: Tree, broadcast: Tree, states: Tree, busy: jax.Array) -> Tree:
    """Advance all lanes until the first busy lane [W] ends a segment.

    With one condition for all lanes, no lane's state has to be selected in each step.
    """

    def together(states):
        # Under vmap over runs, a run that has ended is still traced here, without a busy lane.
        return jnp.any(busy) & jnp.all(lanes.inside(rows, states) | ~busy)

    entered = lanes.enter(rows, states)
    with jax.named_scope(lanes.unit):
        return lax.while_loop(together, lambda s: lanes.step(rows, broadcast, s), entered)


def _side_by_side(loop: Loop, operands: Tree, broadcast: Tree) -> Tree:
    """Run one lane per row: rows do not move, and finished ones keep their state."""
    lanes = _lanes_of(loop)

    def turn(states):
        busy = lanes.unfinished(operands, states)
        stepped = _turn(lanes, operands, broadcast, states, busy)
        return trees.where(busy, stepped, states)

    with jax.named_scope("turns"):
        last = lax.while_loop(
            lambda states: jnp.any(lanes.unfinished(operands, states)),
            turn,
            lanes.begin(operands, broadcast),
        )
    return lanes.finish(operands, broadcast, last)


class _Lanes(NamedTuple):
    """Carry of the packed executor: W parallel lanes, M results.

    `at` is int32 [W], the row that a lane runs, M where none is left for it; `begun` is the
    number of rows that some lane has begun.
    """

    at: jax.Array
    rows: Tree
    states: Tree
    results: Tree
    begun: jax.Array


def _packed(loop: Loop, operands: Tree, broadcast: Tree, lengths: jax.Array, lanes: int) -> Tree:
    """Run the longest rows first; a finished lane takes the next row.

    Lanes then end at nearly the same time.
    """
    count = lengths.shape[0]
    order = jnp.argsort(-lengths, stable=True).astype(jnp.int32)
    mapped = _lanes_of(loop)

    def turn(carry: _Lanes) -> _Lanes:
        at, rows, states, results, begun = carry
        busy = at < count
        states = _turn(mapped, rows, broadcast, states, busy)
        done = busy & ~mapped.unfinished(rows, states)
        ended = mapped.finish(rows, broadcast, states)
        slots = jnp.where(done, at, count)
        results = jax.tree.map(lambda r, e: r.at[slots].set(e, mode="drop"), results, ended)
        ranks = begun + jnp.cumsum(done, dtype=jnp.int32) - 1  # of the next rows in `order`
        following = jnp.where(ranks < count, order[jnp.minimum(ranks, count - 1)], count)
        at = jnp.where(done, following, at)
        rows = trees.where(done, trees.take(operands, at), rows)
        states = trees.where(done, mapped.begin(rows, broadcast), states)
        return _Lanes(at, rows, states, results, begun + jnp.sum(done, dtype=jnp.int32))

    at = order[:lanes]
    rows = trees.take(operands, at)
    states = mapped.begin(rows, broadcast)
    shapes = jax.eval_shape(mapped.finish, rows, broadcast, states)
    results = jax.tree.map(lambda s: jnp.zeros((count, *s.shape[1:]), s.dtype), shapes)
    first = _Lanes(at, rows, states, results, jnp.int32(lanes))
    with jax.named_scope("turns"):
        return lax.while_loop(lambda carry: jnp.any(carry.at < count), turn, first).results
