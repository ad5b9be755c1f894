"""Execution of rounds in chunks, and the host's work between chunks."""

import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.engine.callbacks import Callback, Progress
from fedjax_pfl.engine.checkpoints import Checkpoints, Saved
from fedjax_pfl.engine.compiled import Chunk
from fedjax_pfl.engine.early_stopping import WATCHED, earliest_stop
from fedjax_pfl.engine.fingerprint import check_same, fingerprint
from fedjax_pfl.engine.metrics_buffer import MetricsBuffer
from fedjax_pfl.engine.program import Program
from fedjax_pfl.execution import processes
from fedjax_pfl.results.result import PATIENCE_ENDED, STOP_REQUESTED, Result
from fedjax_pfl.utils.errors import InputError, OutputError, cut, require


class ChunkRunner:
    """Runs the rounds of a program in chunks, with measurements and checkpoints.

    Making one compiles the program, and continues from the newest checkpoint if there is one.

    Args:
      program: the program as requested.
      ready: returns it as it fits the devices; compiles.
      matrix_rounds: rounds, counted from 1, whose mixing matrices are kept.
      checkpoints: where state and measurements are kept, or None. Those of a simulation of fewer
        rounds are continued, if its rounds are the same as the first ones of this.
      patience: rounds without a better validation metric after which the simulation stops.
      past: earlier rounds of the same simulation, which are continued.
      required: those of `matrix_rounds` that were asked for by number.

    Attributes:
      program: as it runs.
      states: after the rounds done, leaves [R, ...].
      done: rounds done.
      metrics: their measurements.
      compile_seconds: time to compile.
      stopped: why the rounds ended before the last one, "" where they did not (see `Result`).

    Raises:
      InputError: the checkpoints belong to another simulation, or a required matrix is of a round
        that was simulated without keeping it; before anything is compiled.
      OutputError: no checkpoint can be written there.
    """

    def __init__(
        self,
        program: Program,
        ready: Callable[[Program], Program],
        matrix_rounds: Sequence[int],
        checkpoints: Checkpoints | None = None,
        patience: int | None = None,
        past: "ChunkRunner | None" = None,
        required: Sequence[int] = (),
    ):
        self.program, self.checkpoints, self.patience = program, checkpoints, patience
        self.done, self.seconds, self.stopped = 0, 0.0, ""
        self.fingerprint, saved, kept = {}, None, list(matrix_rounds)
        if checkpoints is not None or processes.is_distributed():
            self.fingerprint = fingerprint(program, matrix_rounds)
            _check_alike(self.fingerprint)
        if checkpoints is not None:
            checkpoints.check()
            saved = self._continued(checkpoints)
        if past is not None and depends_on_num_rounds(program, past.done, past.program.rounds):
            self._warn_restart(f"the rounds before were {past.program.rounds}")
            past = None
        done, before = 0, kept
        if saved is not None:
            done, before = saved.round, saved.facts.get("matrices", kept)
        elif past is not None:
            done, before = past.done, past.metrics.matrix_rounds
        lost = [r for r in required if r <= done and r not in before]
        allowed = f"after round {done}, as the rounds until then are simulated already"
        require(not lost, "matrix_rounds", lost, allowed)
        kept = [r for r in before if r <= done] + [r for r in kept if r > done]
        self.metrics = MetricsBuffer(program.eval_every, program.rounds, kept)
        began = time.perf_counter()
        self.program = program = ready(program)
        # A chunk of no rounds compiles the program and runs no round.
        first = program.advance(program.start(), 0, 0)
        self.compile_seconds = time.perf_counter() - began
        self.states = first.states
        if past is not None:
            self.states = jax.tree.map(jnp.copy, past.states)  # a result has the others
            self.metrics.follow(past.metrics)
            self.done, self.seconds = past.done, past.seconds
        if saved is not None:
            self._restore(saved, first)
        if self.done and patience is not None and self._patience_ends() < self.done:
            self._restart(first, matrix_rounds)

    def _continued(self, checkpoints: Checkpoints) -> Saved | None:
        """Return the checkpoint to continue from, or None.

        Raises:
          InputError: the checkpoints belong to another simulation.
        """
        saved = checkpoints.latest()
        if saved is None:
            return None
        mark, program = saved.facts["simulation"], self.program
        before = int(mark.get("rounds", 0))
        if before >= program.rounds:
            check_same(mark, self.fingerprint, checkpoints.folder)
            return saved
        shorter = fingerprint(replace(program, rounds=before), saved.facts.get("asked", []))
        check_same(mark, shorter, checkpoints.folder)
        if not depends_on_num_rounds(program, saved.round, before):
            return saved
        self._warn_restart(f"these checkpoints are of {before}")
        checkpoints.clear()
        return None

    def _warn_restart(self, why: str) -> None:
        warnings.warn(
            f"{type(self.program.runs.algorithm).name} begins with the first round again: its "
            f"rounds depend on their number, and {why}.",
            stacklevel=4,
        )

    def _restore(self, saved: Saved, like: Chunk) -> None:
        """Continue from a checkpoint, whose trees have the structures of a chunk's."""
        buffers, matrices = map(jax.tree.structure, like[1:])
        self.states = self.program.restored(saved.trees, like.states)
        self.metrics.restore(saved.trees, buffers, matrices)
        self.done, self.seconds = saved.round, sum(self.metrics.paces)

    def _restart(self, first: Chunk, matrix_rounds: Sequence[int]) -> None:
        """Discard restored rounds beyond the one at which patience ends."""
        warnings.warn(
            f"{type(self.program.runs.algorithm).name} begins with the first round again: with "
            f"patience {self.patience} it ends after round {self._patience_ends()}, and its "
            f"checkpoint is of round {self.done}.",
            stacklevel=2,
        )
        if self.checkpoints is not None:
            self.checkpoints.clear()
        self.metrics = MetricsBuffer(self.program.eval_every, self.program.rounds, matrix_rounds)
        self.states, self.done, self.seconds = first.states, 0, 0.0

    def run(
        self,
        chunk_seconds: float,
        callbacks: Sequence[Callback] = (),
        result: Callable[[], Result] | None = None,
        longest: int | None = None,
    ) -> None:
        """Run the remaining rounds, or fewer; for the arguments see `simulate`.

        Args:
          result: makes the result of the rounds done so far.
          longest: rounds of a chunk at most; by default what the program holds.

        Raises:
          OutputError: a checkpoint can't be written, or a callback of another process has failed.
        """
        rounds, length = self.program.rounds, 1
        longest = min(longest or self.program.capacity, self.program.capacity)
        if self.done:
            self._call_callbacks(callbacks, self.done, result)
        self._check_patience()
        while self.done < rounds and not self.stopped:
            length, since = min(length, self._next_chunk_end() - self.done), self.done
            seconds = self._advance(length)
            ends = self._call_callbacks(callbacks, since, result)
            self._check_patience()
            # The next chunk takes the time asked for, if its rounds take as long as these.
            fitting = chunk_seconds * length / max(seconds, 1e-9)
            length = max(1, int(min(fitting, longest)))
            if self.done < rounds:
                self.stopped = self.stopped or (STOP_REQUESTED if ends else "")
                length = self._save_if_due(length)

    def _call_callbacks(
        self, callbacks: Sequence[Callback], since: int, result: Callable[[], Result] | None
    ) -> bool:
        """Call the callbacks; return whether one of them, in any process, ends the rounds.

        Raises:
          OutputError: a callback of another process has raised an error.
        """
        asked, error = False, None
        try:
            if callbacks:
                progress = self._progress(since, result)
                answers = [one.on_round_end(progress) for one in callbacks]
                for one in answers:
                    fits = isinstance(one, bool | None) or getattr(one, "ndim", 1) == 0
                    require(fits, "What a callback returns", one, "True, False or None")
                asked = any(map(bool, answers))
        except processes.LostProcess:
            raise
        except Exception as raised:  # the other processes would wait for this one
            error = raised
        text = None if error is None else cut(f"{type(error).__name__}: {error}", 300)
        answers_of = processes.exchange([asked, text])
        if error is not None:
            raise error
        for number, (_, text) in enumerate(answers_of):
            if text is not None:
                raise OutputError(f"A callback of process {number} has failed with {text}.")
        return any(each[0] for each in answers_of)

    def _progress(self, since: int, result: Callable[[], Result] | None) -> Progress:
        measure = self.program.federation.measures[0]
        value = self.metrics.latest(f"personalized/test/{measure.name}")
        rounds, runs = self.program.rounds, self.program.runs.seed.shape[0]
        return Progress(self.done, rounds, value, self.seconds, since, result, measure, runs)

    def _next_chunk_end(self) -> int:
        """Return the next round after which a chunk ends.

        That is a round whose matrices are kept, the last round, or one at which patience may end
        the simulation. With extendable checkpoints it may also be the round before the last: a
        longer simulation continues there, since for it the last round need not be a scored one.
        """
        ends = [*self.metrics.matrix_rounds, self.program.rounds]
        if self._extendable:
            ends.append(self.program.rounds - 1)
        if self.patience is not None:
            ends.append(self._patience_ends())
        return min(end for end in ends if end > self.done)

    @property
    def _extendable(self) -> bool:
        return self.checkpoints is not None and self.checkpoints.extendable

    def _patience_ends(self) -> int:
        """Return the first round after which patience may end the simulation, as known so far."""
        assert self.patience is not None
        every, last = self.program.eval_every, self.program.rounds
        measure = self.program.federation.measures[0]
        rounds, values = self.metrics.curve(f"{WATCHED}/{measure.name}")
        return earliest_stop(rounds, measure.toward(values), self.patience, every, last)

    def _check_patience(self) -> None:
        """Set `stopped` if patience has ended."""
        if self.patience is not None and 0 < self.done < self.program.rounds:
            self.stopped = PATIENCE_ENDED if self.done >= self._patience_ends() else ""

    def _advance(self, length: int) -> float:
        """Run and measure a chunk; return its duration in seconds."""
        began = time.perf_counter()
        self.states, buffers, matrices = self.program.advance(self.states, self.done, length)
        seconds = time.perf_counter() - began
        self.seconds += seconds
        self.done += length
        self.metrics.add(length, buffers, matrices, seconds)
        return seconds

    def _save_if_due(self, length: int) -> int:
        """Save a checkpoint if one is due; the first process decides.

        Returns:
          Rounds of the next chunk.
        """
        due = self.checkpoints is not None and self.checkpoints.due()
        due, length = processes.exchange([due, length])[0]
        last = self._extendable and self.done == self.program.rounds - 1
        if self.checkpoints is not None and (self.stopped or last or due):
            trees = {**self.program.saved(self.states), **self.metrics.trees()}
            kept, wanted = self.metrics.matrix_rounds, self.fingerprint["kept matrices"]
            facts = {"simulation": self.fingerprint, "matrices": kept, "asked": json.loads(wanted)}
            self.checkpoints.save(self.done, trees, facts)
        return length


def _check_alike(mark: dict[str, str]) -> None:
    """Raise `InputError` if processes have different simulations."""
    for number, other in enumerate(processes.exchange(mark)):
        differ = [name for name in mark if mark[name] != other.get(name)]
        if differ:
            raise InputError(
                f"All processes must simulate the same, but in process {number} the "
                f"{'; '.join(differ)} differ from this one's."
            )


def depends_on_num_rounds(program: Program, done: int, before: int) -> bool:
    """Return whether the first `done` rounds would differ in a run of `before` rounds."""
    if program.round_facts().reads_num_rounds:
        return True
    if "dp_epsilon" in program.runs.numbers:
        return True  # the noise of an epsilon is that of all rounds
    training = program.federation.training
    one, other = (training.rate_factors(n)[:done] for n in (before, program.rounds))
    return not np.array_equal(one, other)
