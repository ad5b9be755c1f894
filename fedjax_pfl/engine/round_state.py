"""The state of a simulation between two rounds, with its measurements so far."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.client_privacy import client_releases
from fedjax_pfl.core.sample_privacy import releases
from fedjax_pfl.engine.compiled import Chunk
from fedjax_pfl.engine.costs import forward_flops, step_flops
from fedjax_pfl.engine.final_models import Final
from fedjax_pfl.engine.host_states import HostStates
from fedjax_pfl.engine.memory_fit import available_to, compile_in, fit_memory
from fedjax_pfl.engine.metrics_buffer import MetricsBuffer
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import remarks
from fedjax_pfl.execution import memory_maps
from fedjax_pfl.execution.lane_assignment import padding_efficiency
from fedjax_pfl.results.result import Result
from fedjax_pfl.utils.errors import InputError

if TYPE_CHECKING:
    from fedjax_pfl.engine.simulation import Simulation

ENDLESS = 2**30  # rounds of a run that its user ends; none of them is the last one


@dataclass(frozen=True)
class RoundState(Final):
    """The state of all runs between two rounds, as `Simulation.step` takes and returns it.

    `result()` has the measurements so far. `models()`, `model(run, client)`, `predict` and
    `personalize` are those of `result.final`.

    Attributes:
      program: the compiled program that it belongs to.
      padded_states: the algorithm's state as the program has it; `states` is without padding.
      metrics: measurements of the rounds done.
      simulation: whose state it is.
      compile_seconds: time to compile.
      stopped: why the rounds ended early, see `Result`; "" if they did not.
    """

    metrics: MetricsBuffer = field(repr=False, compare=False)
    simulation: "Simulation" = field(repr=False, compare=False)
    compile_seconds: float = 0.0
    stopped: str = ""

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.metrics.done

    def _last(self) -> int:
        return self.round - 1

    def advanced(self, length: int) -> "RoundState":
        """Return the state after further rounds, which take the place of this one's states."""
        began = time.perf_counter()
        states, buffers, matrices = self.program.advance(self.padded_states, self.round, length)
        seconds = time.perf_counter() - began
        metrics = self.metrics.add(length, buffers, matrices, seconds)
        return replace(self, padded_states=states, metrics=metrics)

    def copied(self) -> "RoundState":
        """Return a copy whose rounds leave these states valid, unless they are on the host."""
        if isinstance(self.padded_states, HostStates):
            return self
        return replace(self, padded_states=jax.tree.map(jnp.copy, self.padded_states))

    def result(self) -> Result:
        """Return the `Result` of the rounds done, with their models unless the states are None.

        Raises:
          InputError: no round is done.
        """
        if not self.round:
            raise InputError("There is no result before the first round: call step().")
        simulation, program, metrics = self.simulation, self.program, self.metrics
        algorithm, federation, seeds = simulation.algorithm, program.federation, simulation.seeds
        stage, item_bytes = federation.uploads, np.dtype(federation.task.dtype).itemsize
        arrays = {name: np.asarray(values) for name, values in simulation.settings.items()}
        measured = metrics.collect((len(seeds), -1))
        endless = program.rounds == ENDLESS
        rounds = self.round if self.stopped or endless else program.rounds
        ended = rounds == program.rounds and not endless
        common, single = remarks(algorithm, federation, arrays, rounds, program.adapt, ended)
        ids, names = np.asarray(federation.data.ids), dict(federation.client_names)
        digest = federation.partition_hash
        counted_forward = "forward_samples" in measured["clients"]
        return Result(
            algorithm=algorithm.name,
            hyperparameters=dict(vars(algorithm)),
            training=federation.training.numbers(),
            seeds=tuple(int(seed) for seed in seeds),
            settings=arrays,
            num_clients=federation.num_clients,
            num_parameters=federation.plan.num_parameters,
            client_ids=ids,
            client_names=tuple(names[client] for client in ids.tolist()) if names else (),
            test_sizes=np.asarray(federation.data.test.size),
            train_sizes=np.asarray(federation.data.train.size),
            block_sizes=federation.plan.shared_block_sizes(),
            blocks=federation.plan.blocks,
            upload_bytes=None if stage is None else stage.block_bytes(federation.plan, item_bytes),
            upload_bits=None if stage is None else stage.number_bits,
            item_bytes=item_bytes,
            compile_seconds=self.compile_seconds,
            seconds_per_round=metrics.seconds_per_round() / program.num_runs,
            padding_efficiency=padding_efficiency(federation.steps(), federation.execution),
            execution=str(federation.execution),
            flops_per_step=step_flops(federation),
            flops_per_forward=forward_flops(federation) if counted_forward else None,
            remarks=common,
            setting_remarks=single,
            measures=federation.measures,
            stopped=self.stopped,
            rounds_asked=program.rounds if self.stopped else None,
            partition_hash="" if digest is None else np.asarray(digest).tobytes().hex(),
            privacy=_privacy(algorithm, program, program.num_runs // len(seeds)),
            final=None if self.padded_states is None else self,
            **measured,
        )


def initial_round_state(
    program: Program, simulation: "Simulation", matrix_rounds: Any = None
) -> tuple[RoundState, Chunk]:
    """Compile the program; return the state before the first round, and a chunk of no rounds."""
    if not simulation.compile_seconds:  # else a check could drop what `compile_all` has compiled
        memory_maps.make_room()
    with ThreadPoolExecutor() as pool:
        seconds = compile_in(pool, program)() + simulation.compile_seconds
    simulation.compile_seconds = 0.0  # a longer run compiles nothing
    began = time.perf_counter()
    program = fit_memory(program, available_to(program.federation))
    first = program.advance(program.start(), 0, 0)
    seconds += time.perf_counter() - began
    metrics = MetricsBuffer(program.eval_every, program.rounds, matrix_rounds)
    return RoundState(program, first.states, metrics, simulation, seconds), first


def _privacy(algorithm: Any, program: Program, settings: int) -> dict[str, Any] | None:
    """Return `Result.privacy`: what clients release, with the numbers of each setting."""
    federation, numbers = program.federation, program.runs.numbers
    privacy = federation.privacy
    if privacy is None:
        return None

    def of_settings(name: str) -> list[Any]:
        if name in numbers:
            return np.asarray(numbers[name])[:settings].tolist()
        return [float(getattr(privacy, name.removeprefix("dp_")))] * settings

    return {
        "unit": privacy.unit,
        "delta": privacy.delta,
        "clip": of_settings("dp_clip"),
        "noise": of_settings("dp_noise"),
        **(
            client_releases(algorithm, federation, program.round_facts)
            if federation.sample_privacy is None
            else releases(algorithm, federation, program.round_facts, program.adapt)
        ),
    }
