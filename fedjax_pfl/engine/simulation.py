"""Simulations as objects, to check, step through, run and continue."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace

import jax

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine import arguments
from fedjax_pfl.engine import progress as engine_progress
from fedjax_pfl.engine.callbacks import Callback, Progress
from fedjax_pfl.engine.checkpoints import Checkpoints
from fedjax_pfl.engine.early_stopping import checked_patience
from fedjax_pfl.engine.host_program import HostProgram
from fedjax_pfl.engine.memory import Memory
from fedjax_pfl.engine.memory_fit import available_to, check_held, compile_in, fit_memory
from fedjax_pfl.engine.program import Lowered, Program
from fedjax_pfl.engine.round_state import ENDLESS, RoundState, initial_round_state
from fedjax_pfl.engine.runner import ChunkRunner, depends_on_num_rounds
from fedjax_pfl.engine.runs import Settings, swept_values
from fedjax_pfl.engine.tpu_memory import with_lanes_on_chip
from fedjax_pfl.execution import mesh_shape
from fedjax_pfl.execution.lane_assignment import assign_lanes
from fedjax_pfl.execution.locations import short_locations
from fedjax_pfl.execution.mesh import described_devices
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.results.result import Result
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, require, require_whole
from fedjax_pfl.utils.typing import Device, Tree


class Simulation:
    """An algorithm on a federation, for all seeds and settings in one compiled program.

    `run` runs rounds and can be called again for more. `init` and `step` run single rounds, for
    debugging. `check`, `check_memory` and `lower` examine a run before anything is compiled, and
    `estimate_memory` compiles.

    Args:
      algorithm: the algorithm with its hyperparameters.
      federation: clients, data, local training.
      seeds: each varies initialization, cohorts and batches; never the partition.
      settings: values to sweep inside the program, by name (`runs.sweepable`): traced
        hyperparameters of the algorithm, "learning_rate", "learning_rate_decay", and numbers of
        privacy, attack and aggregator such as "dp_noise". A dict of lists stands for all H
        combinations of their values, those of the last name varying fastest; for other sets give a
        list of H dicts with one value for each name.
      eval_every: number of rounds between evaluations; the last round is always evaluated.
      adapt: also evaluate copies that were trained locally: "trained" for one further local
        training as in a round, `Adaptation()`, otherwise "adapted".
      score_clients: permanent ids of the clients whose models are evaluated; means, tables and
        curves are then over them, and the others' scores are NaN. By default all clients for which
        the algorithm makes models, without attackers.

    Arguments that cannot be used raise `InputError`, at the latest when a method is called.
    """

    @checked
    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        *,
        seeds: Sequence[int] = (0,),
        settings: Settings | None = None,
        eval_every: int = 1,
        adapt: Adaptation | None = None,
        score_clients: Sequence[int] | None = None,
    ):
        self.algorithm, self.federation = algorithm, federation
        self.seeds, self.settings = seeds, swept_values(settings)
        self._options = {"eval_every": eval_every, "adapt": adapt, "score_clients": score_clients}
        self._past: RoundState | None = None
        self.compile_seconds = 0.0  # of `compile_all`

    @checked
    def check(self, rounds: int = 1, *, patience: int | None = None) -> None:
        """Check all arguments without compiling.

        Whether the mesh fits the number of runs is not checked: a run may have only some of them.

        Raises:
          InputError: `run` would refuse these.
        """
        execution = replace(self.federation.execution, run_groups=1)
        program = self._program(rounds, federation=self.federation.with_devices(execution))
        checked_patience(patience, self.algorithm, program.federation, program.adapt)

    @checked
    def check_memory(self) -> None:
        """Check, without compiling, that data and states fit into memory.

        Raises:
          InputError: `run` would refuse these arguments, or for lack of memory.
        """
        check_held(self._program(), available_to(self.federation))

    @short_locations()
    @checked
    def estimate_memory(self, *, fit: bool = False, chunk: int = arguments.CHUNK) -> Memory:
        """Return the peak device memory of a run, by the plan of the compiler.

        The program of its rounds is compiled, and kept for a `run` in the same process.

        Args:
          fit: reduce the number of parallel clients until the program fits, as `run` does.
          chunk: see `run`.

        Raises:
          InputError: `run` would refuse these arguments; with `fit` also for lack of memory.
        """
        limit = available_to(self.federation) if fit else None
        return fit_memory(self._program(chunk=chunk), limit).memory()

    @short_locations()
    @checked
    def lower(
        self,
        devices: Sequence[Device],
        rounds: int = 1,
        *,
        mesh: str = mesh_shape.AUTO,
        chunk: int = arguments.CHUNK,
    ) -> Lowered:
        """Lower the program for devices that are only described; nothing is compiled or run.

        Args:
          devices: in place of those that the federation was made for; such as
            `jax.experimental.topologies.get_topology_desc` gives.
          rounds, chunk: see `run`.
          mesh: how clients and runs share the devices, in place of the federation's (`federate`).

        Raises:
          InputError: `run` would refuse these arguments.
        """
        requested = (
            mesh_shape.MeshShape(len(devices))
            if mesh == mesh_shape.AUTO
            else mesh_shape.parsed(mesh)
        )
        mesh_shape.check(requested, len(devices), f"there are {len(devices)}")
        federation = self.federation
        alike = replace(
            federation.execution, devices=requested.clients, run_groups=requested.runs, fill=1.0
        )
        alike = replace(alike, runs_first=mesh == mesh_shape.AUTO)
        federation = replace(federation, execution=assign_lanes(alike, federation.steps()))
        with described_devices(devices):
            program = with_lanes_on_chip(self._program(rounds, chunk, federation))
        if isinstance(program, HostProgram):
            raise InputError(
                "A plan does not count what moves between host memory and the devices: take "
                "client_state='device'."
            )
        return program.lowered(devices)

    @short_locations()
    @checked
    def init(self, rounds: int | None = None) -> RoundState:
        """Return the state before the first round.

        Args:
          rounds: rounds of the whole run, needed only where they decide what a round does.

        Raises:
          InputError: see `check`, or `rounds` is missing.
        """
        program = self._program(rounds or 1, chunk=1)
        if rounds is None:
            # Most schedules of learning rates that depend on the total do so within few rounds.
            if depends_on_num_rounds(replace(program, rounds=2000), 1000, 1000):
                raise InputError(
                    f"A round of {self.algorithm.name} depends on the number of rounds of the "
                    "whole run: call init(rounds=...)."
                )
            program = replace(program, rounds=ENDLESS)
        return initial_round_state(program, self)[0]

    @short_locations()
    @checked
    def step(self, state: RoundState) -> tuple[RoundState, Tree]:
        """Run one round.

        Args:
          state: of `init` or `step`. It stays valid, except with `client_state="host"`.

        Returns:
          The next state, and the measurements of the round by name: "scores" and "clients" by name,
          [R, N]; "scalars" by name, [R]; copies of each of the model's G blocks sent "up" and
          received "down", int32 [R, N, G]; "matrices" by name, [R, N, N], one for each block
          [R, G, N, N], or a single row [R, 1, N]. `result()` of the state has those of all rounds.

        Raises:
          InputError: the state is no state of this simulation.
        """
        allowed = "a state that init() or step() of this simulation returned"
        require(state.simulation is self, "state", "another simulation's", allowed)
        after = state.copied().advanced(1)
        metrics = jax.tree.map(lambda leaf: leaf[:, 0], after.metrics.parts[-1])
        return after, metrics | {"matrices": after.metrics.matrices[-1]}

    @short_locations()
    @checked
    def run(
        self,
        rounds: int,
        *,
        chunk: int | None = None,
        chunk_seconds: float = 2.0,
        matrix_rounds: Sequence[int] | None = None,
        progress: Callable[[Progress], None] | Callback | bool | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        stop: Callable[[Progress], bool] | None = None,
        patience: int | None = None,
    ) -> Result:
        """Run the rounds up to `rounds`, counted from the first.

        A second call with more rounds continues the first one, with the same bits as one long run.
        An algorithm whose rounds depend on their total number starts over, with a warning.

        Args:
          rounds: total number T of communication rounds.
          chunk: most rounds in one call of the program. Between two calls, measurements move to
            the host, callbacks are called and checkpoints are written. By default 1 with `stop`
            or `callbacks`, else 50. Results do not depend on it.
          chunk_seconds: chunks have fewer rounds if they would take longer than this.
          matrix_rounds: rounds (counted from 1) whose mixing matrices are kept; by default the
            first, the middle and the last, and those that earlier calls have kept.
          progress: called with a `Progress` after each chunk; its `result()` has all measurements
            so far. True prints a line of text, `LiveCurves().of(name)` also draws growing curves.
          callbacks: objects with a method `on_round_end(progress)`, called after each chunk in
            their order (see `Callback`); one that returns true ends the rounds as `stop` does.
            An error in one ends the run, of all processes; earlier checkpoints are kept.
          checkpoints: storage of state and measurements between chunks. If there are some, also of
            a run of fewer rounds, the simulation continues from the last one and ends with the same
            bits as without interruption.
          stop: called with a `Progress` after each chunk but the last; once it returns true, a
            checkpoint is written and the rounds end.
          patience: number of rounds without a new best mean validation accuracy (or main metric of
            another task) of any run (seed and setting) after which the simulation ends.

        Returns:
          A `Result` with axes (seed, setting, round, client), of the rounds that were simulated;
          `result.stopped` is the reason if they ended early.

        Raises:
          InputError: an argument can't be used, the checkpoints belong to another simulation, or
            without them `rounds` is not more than what an earlier call has simulated; before
            anything is compiled.
          OutputError: a checkpoint can't be written, or a callback of another process has failed.
        """
        program = self._program(rounds, arguments.CHUNK if chunk is None else chunk)
        chunk_seconds = arguments.checked_seconds(chunk_seconds)
        called = arguments.checked_callbacks(callbacks, stop)
        longest = 1 if called and chunk is None else None
        recorded = arguments.checked_matrix_rounds(matrix_rounds, rounds)
        required = () if matrix_rounds is None else recorded
        patience = checked_patience(patience, self.algorithm, program.federation, program.adapt)
        past = self._past if checkpoints is None else None
        if past is not None:
            require_whole("rounds", rounds, past.round + 1)
            if isinstance(past.program, HostProgram):
                raise InputError("With client_state='host' only checkpoints continue a simulation.")
        called = [*engine_progress.shown(progress, self.algorithm.name), *called]
        folder = None if checkpoints is None else checkpoints.folder
        chunks = ChunkRunner(
            self,
            replace(program, folder=folder),
            recorded,
            called,
            checkpoints,
            patience,
            past,
            required,
        )
        with ExitStack() as ending:  # a callback may raise
            for one in reversed(called):
                ending.callback(getattr(one, "on_run_end", lambda: None))
            state = chunks.run(chunk_seconds, longest)
        if checkpoints is not None:
            checkpoints.remove_if_empty()
        self._past = state
        return state.result()

    @short_locations()
    def compile_in(self, pool: Executor) -> Callable[[], float]:
        """Begin to compile a run's programs in the threads of a pool; see `Program.compile_in`."""
        return compile_in(pool, self._program())

    def _program(
        self,
        rounds: int = 1,
        chunk: int = arguments.CHUNK,
        federation: Federation | None = None,
    ) -> Program:
        federation = self.federation if federation is None else federation
        return arguments.checked_program(
            self.algorithm,
            federation,
            rounds,
            seeds=self.seeds,
            settings=self.settings,
            chunk=chunk,
            **self._options,
        )
