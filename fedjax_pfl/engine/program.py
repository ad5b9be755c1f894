"""The compiled program of a simulation: its mapped, traced and donated arguments."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Sharding, SingleDeviceSharding

from fedjax_pfl.core import checks, persistent_optimizers
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine.evaluation import evaluate, named_models
from fedjax_pfl.engine.host_store import whole_leaves
from fedjax_pfl.engine.lowered import Lowered
from fedjax_pfl.engine.memory import BESIDE, Memory, nbytes, peak
from fedjax_pfl.engine.runs import Runs, over_runs
from fedjax_pfl.engine.state_sharding import (
    is_filled,
    placed,
    placed_measured,
    unfilled,
    unsharded_metrics,
    unsharded_states,
)
from fedjax_pfl.execution.mesh import described_devices, sharing
from fedjax_pfl.execution.processes import gather_to_host, of_processes, readable
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Device, Rows, Stack, State, Tree


class Chunk(NamedTuple):
    """The results of one call of the program.

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
    """A simulation's compiled program and its fixed arguments.

    Attributes:
      runs: seeds and settings; leaves [R, ...].
      federation: clients, data, local training.
      rounds: T.
      eval_every: models are scored after every so many rounds, and after the last.
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
        """Estimated from the traced program; nothing is compiled.

        None, with a warning, where this version of JAX has other internals, which the estimate
        reads.
        """
        total = np.int32(self.rounds)
        shapes = jax.eval_shape(_start, self.runs, self.federation, total)
        states = placed(shapes, self.federation)
        traced = _advance.trace(*self._operands(states, 0, 0), **self._options)
        execution = self.federation.execution
        devices, platform = execution.devices, execution.platform
        held = nbytes(states, platform)
        data, pool = self.federation.data, 0
        if data.shards > 1:  # the other arrays are whole on every device
            parts = (data.train.index, data.validation.index, data.test.index)
            pool = nbytes((data.samples, data.labels, parts), platform)
        data = (nbytes(self.federation, platform) - pool) * execution.all_devices
        data += pool * execution.runs
        try:
            jaxpr = traced.jaxpr.jaxpr
            owned = frozenset(jaxpr.invars[: len(jax.tree.leaves(states))])
            most = peak(jaxpr, owned, devices, platform)
        except Exception as error:
            warnings.warn(
                f"The memory that this takes can't be estimated with JAX {jax.__version__} "
                f"({type(error).__name__}: {error}), so it is not checked.",
                stacklevel=2,
            )
            return None
        working = round((most - held) * BESIDE.get(platform, 1))
        return Memory(data=data, state=held, working=working)

    def start(self) -> State:
        """The states before the first round, leaves [R, ...]."""
        with of_processes():
            return _start(self.runs, self.federation, np.int32(self.rounds))

    def lowered(self, devices: Sequence[Device]) -> Lowered:
        """For devices that need not be there, as many as the execution has.

        Raises:
          ValueError: another number of devices.
        """
        if len(devices) != self.federation.execution.all_devices:
            raise ValueError("The program is for another number of devices.")
        # On a mesh states alone are placed, and JAX spreads the rest, as in a simulation.
        home = SingleDeviceSharding(devices[0]) if len(devices) == 1 else None
        with described_devices(devices):
            _, runs, federation, *numbers = at(home, self._operands(None, 0, 0))
            total = numbers[2]
            states = at(home, jax.eval_shape(_start, runs, federation, total))
            states = placed(states, self.federation)
            start = _start.trace(runs, federation, total)
            rounds = _advance.trace(states, runs, federation, *numbers, **self._options)
            return Lowered(start.lower(), rounds.lower(), self.memory(), self.federation)

    def advance(self, states: State, t: int, length: int) -> Chunk:
        """Runs `length` <= capacity rounds from round `t`; `states` are donated.

        Waits until the result is ready.

        Raises:
          LostProcess: another process of this program has ended.
        """
        with of_processes():
            chunk = _advance(*self._operands(states, t, length), **self._options)
            buffers, matrices = readable((chunk.buffers, chunk.matrices))
            measured = unsharded_metrics(buffers, matrices, self.federation)
            return jax.block_until_ready(Chunk(chunk.states, *measured))

    def models(self, states: State, t: int, rows: np.ndarray) -> dict[str, Stack | Broadcast]:
        """Models of the clients `rows` [k] after round `t`: see `Final.models`."""
        numbers = np.int32(t), np.int32(self.rounds)
        return readable(_models(states, self.runs, self.federation, *numbers, rows))

    def personalize(self, states: State, t: int, new_clients: Federation) -> Stack:
        """Models of new clients after round `t`: see `Final.personalize`."""
        numbers = np.int32(t), np.int32(self.rounds)
        return _personalize(states, self.runs, self.federation, new_clients, *numbers)

    def whole(self, states: State) -> State:
        """The states on the host, leaves [R, N, ...]; in every process."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(readable(states))]
        return unsharded_states(states, leaves, self.federation)

    def of_clients(self, states: State) -> State:
        """The states, leaves [R, N, ...]: on the host where devices do not divide the clients."""
        return self.whole(states) if is_filled(self.federation) else states

    def saved(self, states: State) -> dict[str, Tree]:
        """What a checkpoint keeps of the states, by name; of several processes in the first one.

        It is the same for any number of devices.
        """
        return {"states": unsharded_states(states, gather_to_host(states), self.federation)}

    def restored(self, trees: Mapping[str, list[np.ndarray]], like: State) -> State:
        """The states of a checkpoint, from the leaves of `saved`, with the structure of `like`."""
        leaves = whole_leaves(trees)
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
    """The state of one run before its first round."""
    return checks.checked_init(run.algorithm, run.context(federation, jnp.int32(0), total))


@jax.jit
def _start(runs: Runs, federation: Federation, total) -> State:
    return placed(over_runs(begin, runs, federation, total), federation)


def measured_round(run: Runs, ctx: Context, state: State) -> tuple[State, dict[str, Tree], Tree]:
    """(state after the round, what its record says of it, its matrices) of one run."""
    state, record = checks.checked_round(run.algorithm, ctx, state)
    names = ("clients", "scalars", "up", "down")
    return state, {name: getattr(record, name) for name in names}, record.matrices


@partial(jax.jit, static_argnames=("capacity", "extra", "scored"), donate_argnums=(0,))
def _advance(states, runs, federation, t, length, total, eval_every, capacity, extra, scored):
    """The compiled program, see `Program.advance`."""

    @traced_once
    def one_round(run, state, federation, now, total, eval_every):
        """(state after round `now`, its measurements, its matrices) of one run."""
        ctx = run.context(federation, now, total)
        with sharing(federation.execution):
            state, kept, matrices = measured_round(run, ctx, state)
        own = persistent_optimizers.own(state)
        due = ((now + 1) % eval_every == 0) | (now + 1 == total)
        measure = traced_once(partial(evaluate, run.algorithm, ctx, own, extra, scored))
        unscored = partial(filled, jax.eval_shape(measure), jnp.nan)
        with jax.named_scope("evaluation"):
            scores = lax.cond(due, measure, unscored)
        return state, kept | {"scores": scores}, matrices

    def chunk(operand, federation, t, length, total, eval_every):
        run, state = operand
        run = run.begun(federation)
        _, kept, matrices = jax.eval_shape(one_round, run, state, federation, t, total, eval_every)

        def body(i, carry):
            state, buffers, _ = carry
            state, kept, matrices = one_round(run, state, federation, t + i, total, eval_every)
            buffers = jax.tree.map(lambda buffer, new: buffer.at[i].set(new), buffers, kept)
            return state, buffers, matrices

        first = (state, filled(kept, 0, (capacity,)), filled(matrices, 0))
        with jax.named_scope("rounds[1]"):  # of one round is told what it takes
            return lax.fori_loop(0, length, body, first)

    numbers, states = (t, length, total, eval_every), unfilled(states, federation)
    states, buffers, matrices = over_runs(chunk, (runs, states), federation, *numbers)
    return Chunk(placed(states, federation), *placed_measured(buffers, matrices, federation))


def at(sharding: Sharding | None, tree: Tree) -> Tree:
    """Shapes of arrays that lie there; nowhere in particular for None."""
    shapes = jax.eval_shape(lambda tree: tree, tree)
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes)


def filled(shapes: Tree, value, lead: tuple[int, ...] = ()) -> Tree:
    """Arrays of those shapes with leading axes `lead`, filled with one value."""
    return jax.tree.map(lambda s: jnp.full((*lead, *s.shape), value, s.dtype), shapes)


def with_adapted(algorithm: Algorithm, ctx: Context, named: dict[str, Any], rows: Rows):
    """Models by name, the personalized ones adapted where that belongs to the algorithm."""
    own = algorithm.adaptation()
    if own is None:
        return named
    return {**named, "personalized": ctx.adapt(named["personalized"], rows, own)}


@jax.jit
def _models(states, runs, federation, t, total, rows):
    def models_of(operand, federation, t, total, rows):
        run, state = operand
        ctx = run.context(federation, t, total)
        named = named_models(run.algorithm, ctx, persistent_optimizers.own(state), rows)
        return with_adapted(run.algorithm, ctx, named, rows)

    operands = runs, unfilled(states, federation)
    return over_runs(models_of, operands, federation, t, total, rows)


@jax.jit
def _personalize(states, runs, federation, new_clients, t, total):
    def personalize(operand, federation, new_clients, t, total):
        run, state = operand
        ctx, new = (run.context(fed, t, total) for fed in (federation, new_clients))
        return run.algorithm.personalize(ctx, persistent_optimizers.own(state), new)

    operands = runs, unfilled(states, federation)
    return over_runs(personalize, operands, federation, new_clients, t, total)
