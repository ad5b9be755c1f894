"""Compiled program of a simulation: its mapped, traced and donated arguments."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from fedjax_pfl.core.round_observer import RoundFacts
from fedjax_pfl.engine import compiled
from fedjax_pfl.engine.compiled import Chunk
from fedjax_pfl.engine.memory import Memory, nbytes, working_bytes
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import Run
from fedjax_pfl.engine.state_sharding import is_padded, placed, unsharded_metrics, unsharded_states
from fedjax_pfl.engine.state_store import restored_leaves
from fedjax_pfl.execution.mesh import described_devices, shapes_on
from fedjax_pfl.execution.processes import gather_to_host, lost_process_errors, readable
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Device, Stack, State, Tree

NO_ROOM = "RESOURCE_EXHAUSTED"  # begins a compiler's message on a program that is too large


class Lowered(NamedTuple):
    """A simulation's program for described devices, ready to be compiled.

    Attributes:
      start: program of the states before the first round.
      rounds: program of a chunk of rounds.
      federation: the federation with the program's lanes.
    """

    start: jax.stages.Lowered
    rounds: jax.stages.Lowered
    federation: Federation


class Call(NamedTuple):
    """One of a program's compiled functions, not traced yet.

    Attributes:
      trace: traces it for the shapes of its arguments.
      held: device memory of data and states while it runs, without working memory.
      arguments: bytes of data and states among its arguments, on all devices.
    """

    trace: Callable[[], jax.stages.Traced]
    held: Memory
    arguments: int


@dataclass(frozen=True)
class Program:
    """Compiled program of a simulation and its fixed arguments.

    Here all state is on the devices; `host_program.HostProgram` has the other form.

    Attributes:
      runs: seeds and settings; leaves [R, ...].
      federation: clients, data, local training.
      rounds: T.
      eval_every: number of rounds between scores of models; the last round is always scored.
      capacity: rounds that the buffers of one call hold.
      adapt: the adaptation of copies before they are scored, or None.
      scored: rows of the clients whose models are scored, or None for all.
      facts: what rounds of the algorithm do; None until it is needed.
      folder: where a file of clients' state may be made, or None for the system's.
    """

    runs: Run
    federation: Federation
    rounds: int
    eval_every: int = 1
    capacity: int = 50
    adapt: Adaptation | None = None
    scored: tuple[int, ...] | None = None
    facts: RoundFacts | None = None
    folder: Path | None = None

    @property
    def num_runs(self) -> int:
        return len(self.runs.seed)

    @cached_property
    def round_facts(self) -> RoundFacts:
        """What rounds of the algorithm do; the first one is traced unless it was before."""
        first = jax.tree.map(lambda leaf: leaf[0], self.runs)
        return self.facts or round_facts(first, self.federation)

    def function(self, name: str) -> Any:
        """Return a jitted function of `compiled` by its name."""
        return getattr(compiled, name)

    def held(self) -> Memory:
        """Return the device memory of data and states; nothing is compiled."""
        return max((call.held for call in self.calls()), key=lambda one: one.total)

    def memory(self) -> Memory:
        """Return the device memory by the compiler's plan; compiles what `advance` runs."""

        def of(call: Call) -> Memory:
            devices, plan = self.federation.execution.all_devices, call.trace().lower().compile()
            return replace(call.held, working=working_bytes(plan, call.arguments, devices))

        return max(map(of, self.calls()), key=lambda one: one.total)

    def calls(self) -> list[Call]:
        """Return the functions that `advance` runs; nothing is traced."""
        execution, data, pool = self.federation.execution, self.federation.data, 0
        if data.shards > 1:  # the other arrays are whole on every device
            pool = nbytes(
                (data.samples, data.labels, data.train.index, data.validation.index,
                 data.test.index)
            )  # fmt: skip
        everywhere = (nbytes(self.federation) - pool) * execution.all_devices
        held = Memory(everywhere + pool * execution.run_groups, nbytes(self._shapes), working=0)
        operands = self._operands(self._shapes, 0, 0)
        trace = partial(self.function("advance").trace, *operands, **self._options)
        return [Call(trace, held, held.total)]

    @property
    def _shapes(self) -> State:
        """The states' shapes and shardings."""
        return placed(self._start.eval_shape(*self._first_operands), self.federation)

    @property
    def _start(self) -> Any:
        return compiled.starter(self.federation.execution.platform)

    @property
    def _first_operands(self) -> tuple:
        return self.runs, self.federation, np.int32(self.rounds)

    def _first_lowered(self) -> jax.stages.Lowered:
        return self._start.lower(*self._first_operands)

    def compile_in(self, pool: Executor) -> Callable[[], float]:
        """Begin to compile what `start` and `advance` call; JAX keeps it.

        Here it is traced, and in the threads of a pool compiled, which needs no Python.

        Returns:
          A function that waits, and returns the seconds of tracing and compiling.
        """
        began = time.perf_counter()
        compiling = [pool.submit(_compile_seconds, self._first_lowered())]
        for call in self.calls():
            compiling.append(pool.submit(_compile_seconds, call.trace().lower()))
        seconds = time.perf_counter() - began
        return lambda: seconds + sum(one.result() for one in compiling)

    def start(self) -> State:
        """Return the states before the first round, leaves [R, ...]."""
        with lost_process_errors():
            return self._start(*self._first_operands)

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
            _, runs, federation, *numbers = shapes_on(home, self._operands(None, 0, 0))
            total = numbers[2]
            start = self._start.trace(runs, federation, total)
            states = placed(shapes_on(home, start.out_info), self.federation)
            rounds = self.function("advance").trace(
                states, runs, federation, *numbers, **self._options
            )
            return Lowered(start.lower(), rounds.lower(), self.federation)

    def advance(self, states: State, t: int, length: int) -> Chunk:
        """Run `length` <= capacity rounds from round `t`; `states` are donated.

        Waits until the result is ready.

        Raises:
          LostProcess: another process of this program has ended.
        """
        with lost_process_errors():
            chunk = self.function("advance")(*self._operands(states, t, length), **self._options)
            buffers, matrices = readable((chunk.buffers, chunk.matrices))
            measured = unsharded_metrics(buffers, matrices, self.federation)
            return jax.block_until_ready(Chunk(chunk.states, *measured))

    def models(self, states: State, t: int, rows: np.ndarray) -> dict[str, Stack | Broadcast]:
        """Return models of the clients `rows` [k] after round `t`; see `Final.models`."""
        numbers = np.int32(t), np.int32(self.rounds)
        models = self.function("models")
        return readable(models(states, self.runs, self.federation, *numbers, rows))

    def personalize(self, states: State, t: int, new_clients: Federation) -> Stack:
        """Return models of new clients after round `t`; see `Final.personalize`."""
        numbers = np.int32(t), np.int32(self.rounds)
        personalize = self.function("personalize")
        return personalize(states, self.runs, self.federation, new_clients, *numbers)

    def backbone(self, states: State, t: int) -> Tree | None:
        """Return the leaves that no client's model contains after round `t`, [R, ...], or None."""
        numbers = np.int32(t), np.int32(self.rounds)
        return readable(compiled.backbone(states, self.runs, self.federation, *numbers))

    def to_host(self, states: State) -> State:
        """Return the states on the host, leaves [R, N, ...], in every process."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(readable(states))]
        return unsharded_states(states, leaves, self.federation)

    def of_clients(self, states: State) -> State:
        """Return unpadded states [R, N, ...], on the host if devices do not divide clients."""
        return self.to_host(states) if is_padded(self.federation) else states

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
        return {"capacity": self.capacity, "adapt": self.adapt, "scored": self.scored}


def _compile_seconds(lowered: jax.stages.Lowered) -> float:
    began = time.perf_counter()
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if NO_ROOM not in str(error):  # `memory_fit` takes fewer lanes
            raise
    return time.perf_counter() - began
