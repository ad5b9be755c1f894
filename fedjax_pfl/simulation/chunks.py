"""Rounds in chunks: the host's work between two calls of the program."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from fedjax_pfl.errors import InputError
from fedjax_pfl.execution import processes
from fedjax_pfl.simulation.checkpoints import Checkpoints, Saved, check_same, fingerprint
from fedjax_pfl.simulation.collector import Collector
from fedjax_pfl.simulation.program import Chunk, Program, placed


class Interrupted(Exception):
    """A simulation was asked to stop, and stopped between two chunks.

    Attributes:
      round: rounds done; the checkpoints hold them, if there are any.
    """

    def __init__(self, done: int):
        super().__init__(f"Stopped after round {done}.")
        self.round = done


class Progress(NamedTuple):
    """The argument of a progress callback, called between chunks.

    Attributes:
      round: rounds done.
      rounds: rounds of the run.
      accuracy: mean over runs and clients of the last scored personalized test accuracy, or None.
      seconds: wall time since the first round, without compilation.
    """

    round: int
    rounds: int
    accuracy: float | None
    seconds: float


class Chunks:
    """The rounds of a program, run in chunks that are measured and kept in checkpoints.

    Making one compiles the program, and continues from the newest checkpoint if there is one.

    Args:
      program: the compiled program.
      matrix_rounds: rounds, counted from 1, whose mixing matrices are kept.
      checkpoints: where state and measurements are kept, or None.

    Attributes:
      states: after the rounds done, leaves [R, ...].
      done: rounds done.
      collector: their measurements.
      compile_seconds: time to compile.

    Raises:
      InputError: the checkpoints are another simulation's; before anything is compiled.
      OutputError: no checkpoint can be written there.
    """

    def __init__(
        self,
        program: Program,
        matrix_rounds: Sequence[int],
        checkpoints: Checkpoints | None = None,
    ):
        self.program, self.checkpoints = program, checkpoints
        self.done, self.spent = 0, 0.0
        self.collector = Collector(program.eval_every, program.rounds, matrix_rounds)
        self.mark, saved = {}, None
        if checkpoints is not None or processes.several():
            self.mark = fingerprint(program, matrix_rounds)
            _check_alike(self.mark)
        if checkpoints is not None:
            checkpoints.check()
            saved = checkpoints.latest()
            if saved is not None:
                check_same(saved.facts["simulation"], self.mark, checkpoints.folder)
        began = time.perf_counter()
        # A chunk of no rounds compiles the program and runs no round.
        first = program.advance(program.start(), 0, 0)
        self.compile_seconds = time.perf_counter() - began
        self.states = first.states
        if saved is not None:
            self._restore(saved, first)

    def _restore(self, saved: Saved, like: Chunk) -> None:
        """Continues from a checkpoint, whose trees have the structures of a chunk's."""
        states, buffers, matrices = map(jax.tree.structure, like)
        leaves = saved.trees["states"]
        if not processes.several():
            leaves = [jax.device_put(leaf) for leaf in leaves]
        self.states = placed(jax.tree.unflatten(states, leaves), self.program.federation)
        self.collector.restore(saved.trees, buffers, matrices)
        self.done, self.spent = saved.round, sum(self.collector.paces)

    def run(
        self,
        chunk_seconds: float,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """Runs the remaining rounds; for the arguments see `simulate`.

        Raises:
          Interrupted: `stop` returned true.
          OutputError: a checkpoint can't be written.
        """
        rounds, length = self.program.rounds, 1
        while self.done < rounds:
            length = min(length, self._next_stop() - self.done)
            seconds = self._advance(length)
            if progress is not None:
                accuracy = self.collector.accuracy()
                progress(Progress(self.done, rounds, accuracy, self.spent))
            # The next chunk takes the time asked for, if its rounds take as long as these.
            fitting = chunk_seconds * length / max(seconds, 1e-9)
            length = max(1, int(min(fitting, self.program.capacity)))
            if self.done < rounds:
                length = self._pause(stop, length)

    def _next_stop(self) -> int:
        """The next round after which a chunk ends: its matrices are kept, or it is the last."""
        ends = (*self.collector.matrix_rounds, self.program.rounds)
        return min(end for end in ends if end > self.done)

    def _advance(self, length: int) -> float:
        """Runs and measures a chunk; returns the seconds that it took."""
        began = time.perf_counter()
        self.states, buffers, matrices = self.program.advance(self.states, self.done, length)
        seconds = time.perf_counter() - began
        self.spent += seconds
        self.done += length
        self.collector.add(length, buffers, matrices, seconds)
        return seconds

    def _pause(self, stop: Callable[[], bool] | None, length: int) -> int:
        """Writes a checkpoint where one is due, and stops if asked to; the next chunk's rounds.

        One process that is asked is enough; for the rest the first one decides.
        """
        stopped = stop is not None and bool(stop())
        due = self.checkpoints is not None and self.checkpoints.due()
        said = processes.exchange([stopped, due, length])
        stopped, (_, due, length) = any(each[0] for each in said), said[0]
        if self.checkpoints is not None and (stopped or due):
            trees = {"states": self.states, **self.collector.trees()}
            self.checkpoints.save(self.done, trees, {"simulation": self.mark})
        if stopped:
            raise Interrupted(self.done)
        return length


def _check_alike(mark: dict[str, str]) -> None:
    """Raises `InputError` where processes simulate something else."""
    for number, other in enumerate(processes.exchange(mark)):
        differ = [name for name in mark if mark[name] != other.get(name)]
        if differ:
            raise InputError(
                f"All processes must simulate the same, but in process {number} the "
                f"{'; '.join(differ)} differ from this one's."
            )
