"""Execution of rounds in chunks, and the host's work between chunks."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedjax_pfl.engine.callbacks import Callback, Progress
from fedjax_pfl.engine.checkpoints import Checkpoints, Saved
from fedjax_pfl.engine.early_stopping import WATCHED, earliest_stop
from fedjax_pfl.engine.fingerprint import check_same, fingerprint
from fedjax_pfl.engine.metrics_buffer import MetricsBuffer
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.round_state import RoundState, initial_round_state
from fedjax_pfl.execution import processes
from fedjax_pfl.results.result import PATIENCE_ENDED, STOP_REQUESTED
from fedjax_pfl.utils.errors import InputError, OutputError, cut, require, warn

if TYPE_CHECKING:
    from fedjax_pfl.engine.simulation import Simulation


class ChunkRunner:
    """Runs the rounds of a simulation in chunks, with callbacks and checkpoints.

    The constructor compiles the program and continues from the newest checkpoint, if any.

    Args:
      simulation: whose rounds these are.
      program: the program as requested.
      matrix_rounds: rounds, counted from 1, whose mixing matrices are kept.
      callbacks: called after each chunk.
      checkpoints: where state and measurements are kept, or None. Those of a simulation of fewer
        rounds are continued, if its rounds are the same as the first ones of this.
      patience: rounds without a better validation metric after which the simulation stops.
      past: the state after earlier rounds of the same simulation, which are continued.
      required: rounds whose matrices the caller asked for; one that was not kept is an error.

    Attributes:
      state: after the rounds done.

    Raises:
      InputError: the checkpoints belong to another simulation, or a required matrix is of a round
        that was simulated without keeping it; before anything is compiled.
      OutputError: no checkpoint can be written there.
    """

    def __init__(
        self,
        simulation: "Simulation",
        program: Program,
        matrix_rounds: Sequence[int],
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        patience: int | None = None,
        past: RoundState | None = None,
        required: Sequence[int] = (),
    ):
        self.callbacks, self.checkpoints, self.patience = callbacks, checkpoints, patience
        self.fingerprint, saved, kept = {}, None, list(matrix_rounds)
        if checkpoints is not None or processes.is_distributed():
            self.fingerprint = fingerprint(program, matrix_rounds)
            _check_alike(self.fingerprint)
        if checkpoints is not None:
            checkpoints.check()
            saved = self._continued(program, checkpoints)
        if (
            past is not None
            and (asked := past.program.rounds) != program.rounds
            and depends_on_num_rounds(program, past.round, asked)
        ):
            _warn_restart(program, f"the rounds before were {asked}")
            past = None
        done, before = 0, kept
        if saved is not None:
            done, before = saved.round, saved.facts.get("matrices", kept)
        elif past is not None:
            done, before = past.round, past.metrics.keeps(past.program.rounds)
        lost = [r for r in required if r <= done and r not in before]
        allowed = f"after round {done}, as the rounds until then are simulated already"
        require(not lost, "matrix_rounds", lost, allowed)
        kept = [r for r in before if r <= done] + [r for r in kept if r > done]
        first, chunk = initial_round_state(program, simulation, kept)
        states, metrics = first.padded_states, first.metrics
        if past is not None:
            states = past.copied().padded_states  # a result has the others
            metrics = metrics.following(past.metrics)
        if saved is not None:
            states = first.program.restored(saved.trees, states)
            structures = map(jax.tree.structure, chunk[1:])
            metrics = metrics.restored(saved.trees, *structures)
        self.state = replace(first, padded_states=states, metrics=metrics)
        if self.state.round and patience is not None and self._patience_ends() < self.state.round:
            self._warn_patience()
            fresh = MetricsBuffer(program.eval_every, program.rounds, matrix_rounds)
            self.state = replace(first, metrics=fresh)

    def _continued(self, program: Program, checkpoints: Checkpoints) -> Saved | None:
        """Return the checkpoint to continue from, or None.

        Raises:
          InputError: the checkpoints belong to another simulation.
        """
        saved = checkpoints.latest()
        if saved is None:
            return None
        mark = saved.facts["simulation"]
        before = int(mark.get("rounds", 0))
        if before >= program.rounds:
            check_same(mark, self.fingerprint, checkpoints.folder)
            return saved
        shorter = fingerprint(replace(program, rounds=before), saved.facts.get("asked", []))
        check_same(mark, shorter, checkpoints.folder)
        if not depends_on_num_rounds(program, saved.round, before):
            return saved
        _warn_restart(program, f"these checkpoints are of {before}")
        checkpoints.clear()
        return None

    def _warn_patience(self) -> None:
        """Warn that rounds beyond the one at which patience ends are discarded."""
        warn(
            f"{type(self.state.program.runs.algorithm).name} begins with the first round again: "
            f"with patience {self.patience} it ends after round {self._patience_ends()}, and its "
            f"checkpoint is of round {self.state.round}."
        )
        if self.checkpoints is not None:
            self.checkpoints.clear()

    def run(self, chunk_seconds: float, longest: int | None = None) -> RoundState:
        """Run the remaining rounds, or fewer; return the state after them.

        Args:
          chunk_seconds: see `simulate`.
          longest: rounds of a chunk at most; by default what the program holds.

        Raises:
          OutputError: a checkpoint can't be written, or a callback of another process has failed.
        """
        program, length = self.state.program, 1
        longest = min(longest or program.capacity, program.capacity)
        if self.state.round:
            self._call_callbacks(self.state.round)
        self._check_patience()
        while self.state.round < program.rounds and not self.state.stopped:
            since = self.state.round
            length = min(length, self._next_chunk_end() - since)
            self.state = self.state.advanced(length)
            ends = self._call_callbacks(since)
            self._check_patience()
            # The next chunk takes the time asked for, if its rounds take as long as these.
            fitting = chunk_seconds / max(self.state.metrics.paces[-1], 1e-9)
            length = max(1, int(min(fitting, longest)))
            if self.state.round < program.rounds:
                self._stop(self.state.stopped or (STOP_REQUESTED if ends else ""))
                length = self._save_if_due(length)
        return self.state

    def _stop(self, why: str) -> None:
        self.state = replace(self.state, stopped=why)

    def _call_callbacks(self, since: int) -> bool:
        """Call the callbacks; return whether one of them, in any process, ends the rounds.

        Raises:
          OutputError: a callback of another process has raised an error.
        """
        asked, error = False, None
        try:
            if self.callbacks:
                progress = self._progress(since)
                answers = [one.on_round_end(progress) for one in self.callbacks]
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

    def _progress(self, since: int) -> Progress:
        state, program = self.state, self.state.program
        measure = program.federation.measures[0]
        value = state.metrics.latest(f"personalized/test/{measure.name}")
        seconds, result = sum(state.metrics.paces), replace(state, padded_states=None).result
        return Progress(
            state.round, program.rounds, value, seconds, since, result, measure, program.num_runs
        )

    def _next_chunk_end(self) -> int:
        """Return the next round after which a chunk ends.

        That is a round whose matrices are kept, the last round, or one at which patience may end
        the simulation. With extendable checkpoints it may also be the round before the last: a
        longer simulation continues there, since for it the last round need not be a scored one.
        """
        rounds = self.state.program.rounds
        ends = [*self.state.metrics.keeps(rounds), rounds]
        if self._extendable:
            ends.append(rounds - 1)
        if self.patience is not None:
            ends.append(self._patience_ends())
        return min(end for end in ends if end > self.state.round)

    @property
    def _extendable(self) -> bool:
        return self.checkpoints is not None and self.checkpoints.extendable

    def _patience_ends(self) -> int:
        """Return the first round after which patience may end the simulation, as known so far."""
        assert self.patience is not None
        program, metrics = self.state.program, self.state.metrics
        measure = program.federation.measures[0]
        rounds, values = metrics.curve(f"{WATCHED}/{measure.name}")
        better = measure.toward(values)
        return earliest_stop(rounds, better, self.patience, program.eval_every, program.rounds)

    def _check_patience(self) -> None:
        """Set `stopped` if patience has ended."""
        if self.patience is not None and 0 < self.state.round < self.state.program.rounds:
            self._stop(PATIENCE_ENDED if self.state.round >= self._patience_ends() else "")

    def _save_if_due(self, length: int) -> int:
        """Save a checkpoint if one is due; the first process decides.

        Returns:
          Rounds of the next chunk.
        """
        state, program, metrics = self.state, self.state.program, self.state.metrics
        due = self.checkpoints is not None and self.checkpoints.due()
        due, length = processes.exchange([due, length])[0]
        last = self._extendable and state.round == program.rounds - 1
        if self.checkpoints is not None and (state.stopped or last or due):
            trees = {**program.saved(state.padded_states), **metrics.trees()}
            kept, wanted = metrics.keeps(program.rounds), self.fingerprint["kept matrices"]
            facts = {"simulation": self.fingerprint, "matrices": kept, "asked": json.loads(wanted)}
            self.checkpoints.save(state.round, trees, facts)
        return length


def _warn_restart(program: Program, why: str) -> None:
    warn(
        f"{type(program.runs.algorithm).name} begins with the first round again: its rounds depend "
        f"on their number, and {why}."
    )


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
    if program.round_facts.reads_num_rounds:
        return True
    if "dp_epsilon" in program.runs.numbers:
        return True  # the noise of an epsilon is that of all rounds
    training = program.federation.training
    one, other = (training.rate_factors(n)[:done] for n in (before, program.rounds))
    return not np.array_equal(one, other)
