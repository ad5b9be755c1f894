"""Compiled program of a simulation: its mapped, traced and donated arguments."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Sharding, SingleDeviceSharding

from fedjax_pfl.core import checks, persistent_optimizers
from fedjax_pfl.core.context import Context
from fedjax_pfl.engine.evaluation import evaluate, named_models
from fedjax_pfl.engine.lowered import Lowered
from fedjax_pfl.engine.memory import BESIDE, Memory, nbytes, peak
from fedjax_pfl.engine.runs import Runs, over_runs
from fedjax_pfl.engine.state_sharding import (
    closed,
    is_filled,
    opened,
    placed,
    placed_measured,
    unsharded_metrics,
    unsharded_states,
)
from fedjax_pfl.engine.state_store import Address, Reader, restored_leaves
from fedjax_pfl.execution.mesh import described_devices, mesh_of, sharing
from fedjax_pfl.execution.processes import gather_to_host, of_processes, readable
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Device, Rows, Scalar, Stack, State, Tree


class Chunk(NamedTuple):
    """Results of one call of the program.

    Attributes:
      states: after its last round, leaves [R, ...].
      buffers: measurements of every round, leaves [R, capacity, ...]; the first `length` are
        filled.
      matrices: of its last round, leaves [R, ...].
    """

    states: State
    buffers: Tree
    matrices: Tree


@dataclass(frozen=True)
class Program:
    """Compiled program of a simulation and its fixed arguments.

    Attributes:
      runs: seeds and settings; leaves [R, ...].
      federation: clients, data, local training.
      rounds: T.
      eval_every: number of rounds between scores of models; the last round is always scored.
      capacity: rounds that the buffers of one call hold.
      adapt: the adaptation of copies before they are scored, or None.
      scored: rows of the clients whose models are scored, or None for all.
    """

    runs: Runs
    federation: Federation
    rounds: int
    eval_every: int = 1
    capacity: int = 50
    adapt: Adaptation | None = None
    scored: tuple[int, ...] | None = None

    @property
    def num_runs(self) -> int:
        return len(self.runs.seed)

    def memory(self) -> Memory | None:
        """Estimate device memory from the traced program, without compiling.

        None, with a warning, where this version of JAX has other internals.
        """
        total = np.int32(self.rounds)
        shapes = jax.eval_shape(_start, self.runs, self.federation, total)
        states = placed(shapes, self.federation)
        traced = advance.trace(*self._operands(states, 0, 0), **self._options)
        execution, data, pool = self.federation.execution, self.federation.data, 0
        platform = execution.platform
        if data.shards > 1:  # the other arrays are whole on every device
            parts = (data.train.index, data.validation.index, data.test.index)
            pool = nbytes((data.samples, data.labels, parts), platform)
        data = (nbytes(self.federation, platform) - pool) * execution.all_devices
        data += pool * execution.runs
        state_bytes = nbytes(states, platform)
        working = working_bytes(traced, len(jax.tree.leaves(states)), state_bytes, execution)
        return None if working is None else Memory(data=data, state=state_bytes, working=working)

    def start(self) -> State:
        """Return the states before the first round, leaves [R, ...]."""
        with of_processes():
            return _start(self.runs, self.federation, np.int32(self.rounds))

    def lowered(self, devices: Sequence[Device]) -> Lowered:
        """Lower the program for described devices, as many as the execution has.

        Raises:
          ValueError: another number of devices.
        """
        if len(devices) != self.federation.execution.all_devices:
            raise ValueError("The program is for another number of devices.")
        # On a mesh only states are placed, and JAX distributes the rest, as in a simulation.
        home = SingleDeviceSharding(devices[0]) if len(devices) == 1 else None
        with described_devices(devices):
            _, runs, federation, *numbers = at(home, self._operands(None, 0, 0))
            total = numbers[2]
            states = at(home, jax.eval_shape(_start, runs, federation, total))
            states = placed(states, self.federation)
            start = _start.trace(runs, federation, total)
            rounds = advance.trace(states, runs, federation, *numbers, **self._options)
            return Lowered(start.lower(), rounds.lower(), self.memory(), self.federation)

    def advance(self, states: State, t: int, length: int) -> Chunk:
        """Run `length` <= capacity rounds from round `t`; `states` are donated.

        Waits until the result is ready.

        Raises:
          LostProcess: another process of this program has ended.
        """
        with of_processes():
            chunk = advance(*self._operands(states, t, length), **self._options)
            buffers, matrices = readable((chunk.buffers, chunk.matrices))
            measured = unsharded_metrics(buffers, matrices, self.federation)
            return jax.block_until_ready(Chunk(chunk.states, *measured))

    def models(self, states: State, t: int, rows: np.ndarray) -> dict[str, Stack | Broadcast]:
        """Return models of the clients `rows` [k] after round `t`; see `Final.models`."""
        numbers = np.int32(t), np.int32(self.rounds)
        return readable(models(states, self.runs, self.federation, *numbers, rows))

    def personalize(self, states: State, t: int, new_clients: Federation) -> Stack:
        """Return models of new clients after round `t`; see `Final.personalize`."""
        numbers = np.int32(t), np.int32(self.rounds)
        return _personalize(states, self.runs, self.federation, new_clients, *numbers)

    def backbone(self, states: State, t: int) -> Tree | None:
        """Return the leaves that no client's model contains after round `t`, [R, ...], or None."""
        numbers = np.int32(t), np.int32(self.rounds)
        return readable(_backbone(states, self.runs, self.federation, *numbers))

    def to_host(self, states: State) -> State:
        """Return the states on the host, leaves [R, N, ...], in every process."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(readable(states))]
        return unsharded_states(states, leaves, self.federation)

    def of_clients(self, states: State) -> State:
        """Return unpadded states [R, N, ...], on the host if devices do not divide clients."""
        return self.to_host(states) if is_filled(self.federation) else states

    def saved(self, states: State) -> dict[str, Tree]:
        """Return the states' part for a checkpoint by name, in the first process.

        It is the same for any number of devices.
        """
        return {"states": unsharded_states(states, gather_to_host(states), self.federation)}

    def restored(self, trees: Mapping[str, list[np.ndarray]], like: State) -> State:
        """Return the states of a checkpoint from the leaves of `saved`, structured as `like`."""
        leaves = restored_leaves(trees)
        if self.federation.execution.all_devices == 1:
            leaves = [jax.device_put(leaf) for leaf in leaves]
        return placed(jax.tree.unflatten(jax.tree.structure(like), leaves), self.federation)

    def _operands(self, states: State, t: int, length: int) -> tuple:
        numbers = (t, length, self.rounds, self.eval_every)
        return states, self.runs, self.federation, *(np.int32(number) for number in numbers)

    @property
    def _options(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "extra": self.adapt, "scored": self.scored}


# For a function whose shapes are asked before it is used: JAX keeps the first trace. The program is
# the same as without.
traced_once = partial(jax.jit, inline=True)


def begin(run: Runs, federation: Federation, total) -> State:
    """Return the state of one run before its first round."""
    return checks.checked_init(run.algorithm, run.context(federation, jnp.int32(0), total))


@jax.jit
def _start(runs: Runs, federation: Federation, total) -> State:
    return placed(over_runs(begin, runs, federation, total), federation)


def round_context(
    run: Runs,
    federation: Federation,
    t: Scalar,
    total: Scalar,
    address: Address | None = None,
    clients: Rows | None = None,
) -> Context:
    """Return the context of one run's round.

    Args:
      address: where rows of state are read that are not on the device; None where all are there.
      clients: those whose rows and samples are on the device then, by default the cohort.
    """
    ctx = run.context(federation, t, total)
    if address is None:
        return ctx
    data = replace(ctx.federation.data, device_rows=ctx.cohort.rows if clients is None else clients)
    ctx = replace(ctx, federation=replace(ctx.federation, data=data))
    if not address.readable:
        return ctx
    execution = federation.execution  # of several devices that share clients the first one reads
    mesh = mesh_of(execution.devices, execution.runs) if execution.devices > 1 else mesh_of(1)
    return replace(ctx, reader=Reader(address, mesh))


@partial(jax.jit, static_argnames=("capacity", "extra", "scored"), donate_argnums=(0,))
def advance(states, runs, federation, t, length, total, eval_every, capacity, extra, scored):
    """Run a chunk of rounds; see `Program.advance`."""

    @traced_once
    def one_round(run, state, address, federation, now, total, eval_every):
        """Return one run's state after round `now`, its measurements and matrices."""
        ctx = round_context(run, federation, now, total, address)
        with sharing(federation.execution) if address is None else nullcontext():
            state, record = checks.checked_round(run.algorithm, ctx, state)
        own = persistent_optimizers.own(state)
        due = ((now + 1) % eval_every == 0) | (now + 1 == total)
        measure = traced_once(partial(evaluate, run.algorithm, ctx, own, extra, scored))
        unscored = partial(filled, jax.eval_shape(measure), jnp.nan)
        with jax.named_scope("evaluation"):
            scores = lax.cond(due, measure, unscored)
        measured = {name: getattr(record, name) for name in ("clients", "scalars", "up", "down")}
        return state, measured | {"scores": scores}, record.matrices

    def chunk(operand, federation, t, length, total, eval_every):
        run, state, address = operand
        run = run.with_backbone(federation)

        def step(state, now):
            return one_round(run, state, address, federation, now, total, eval_every)

        def body(i, carry):
            state, buffers, _ = carry
            state, measured, matrices = step(state, t + i)
            buffers = jax.tree.map(lambda buffer, new: buffer.at[i].set(new), buffers, measured)
            return state, buffers, matrices

        _, measured, matrices = jax.eval_shape(step, state, t)
        first = (state, filled(measured, 0, (capacity,)), filled(matrices, 0))
        with jax.named_scope("rounds[1]"):  # cost tools report numbers of one round
            return lax.fori_loop(0, length, body, first)

    numbers, operands = (t, length, total, eval_every), (runs, *opened(states, federation))
    state, buffers, matrices = over_runs(chunk, operands, federation, *numbers)
    buffers, matrices = placed_measured(buffers, matrices, federation)
    return Chunk(closed(state, states, federation), buffers, matrices)


def working_bytes(traced: Any, owned: int, state_bytes: int, execution: Execution) -> int | None:
    """Estimate the bytes of a traced program in addition to its inputs.

    Args:
      owned: how many of its inputs, the first ones, it may use up.
      state_bytes: bytes of these.

    Returns:
      None, with a warning, where this version of JAX has other internals.
    """
    try:
        jaxpr = traced.jaxpr.jaxpr
        inputs = frozenset(jaxpr.invars[:owned])
        most = peak(jaxpr, inputs, execution.devices, execution.platform)
    except Exception as error:
        warnings.warn(
            f"The memory that this takes can't be estimated with JAX {jax.__version__} "
            f"({type(error).__name__}: {error}), so it is not checked.",
            stacklevel=3,
        )
        return None
    return round(max(most - state_bytes, 0) * BESIDE.get(execution.platform, 1))


def at(sharding: Sharding | None, tree: Tree) -> Tree:
    """Return shapes with a sharding, or without one for None."""
    shapes = jax.eval_shape(lambda tree: tree, tree)
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes)


def filled(shapes: Tree, value, lead: tuple[int, ...] = ()) -> Tree:
    """Return arrays of given shapes with leading axes `lead`, filled with a value."""
    return jax.tree.map(lambda s: jnp.full((*lead, *s.shape), value, s.dtype), shapes)


@jax.jit
def models(states, runs, federation, t, total, rows):
    def models_of(operand, federation, t, total, rows):
        run, state, address = operand
        state = persistent_optimizers.own(state)
        ctx = round_context(run, federation, t, total, address, rows)
        ctx = checks.with_base(run.algorithm, ctx, state)
        named = named_models(run.algorithm, ctx, state, rows)
        own = run.algorithm.adaptation()
        if own is None:
            return named
        return {**named, "personalized": ctx.adapt(named["personalized"], rows, own)}

    operands = runs, *opened(states, federation)
    return over_runs(models_of, operands, federation, t, total, rows)


@jax.jit
def _personalize(states, runs, federation, new_clients, t, total):
    def personalize(operand, federation, new_clients, t, total):
        run, state = operand
        state = persistent_optimizers.own(state)
        contexts = (run.context(fed, t, total) for fed in (federation, new_clients))
        ctx, new = (checks.with_base(run.algorithm, one, state) for one in contexts)
        return run.algorithm.personalize(ctx, state, new)

    operands = runs, opened(states, federation)[0]
    return over_runs(personalize, operands, federation, new_clients, t, total)


@jax.jit
def _backbone(states, runs, federation, t, total):
    def backbone(operand, federation, t, total):
        run, state = operand
        ctx = checks.with_base(run.algorithm, run.context(federation, t, total), state)
        return ctx.federation.backbone

    operands = runs, opened(states, federation)[0]
    return over_runs(backbone, operands, federation, t, total)
