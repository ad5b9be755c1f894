"""What uploads and robust rules remember between rounds, while a round is traced."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.uploads.stage import StageMemory, UploadInfo, UploadStage
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import Stack


class UploadMemory:
    """Provides the upload "model" with its memory while a round is traced.

    Args:
      name: name of the algorithm, for error messages.
      state: the `ExtendedState` before the round.

    Attributes:
      errors, bound, history, centre, attack: as in `ExtendedState`, after the calls so far.
    """

    def __init__(self, name: str, state: Any):
        self.name, self.errors, self.bound = name, state.errors, state.bound
        self.history, self.centre, self.attack = state.history, state.centre, state.attack
        self._aggregated, self._trace = False, trace_state()

    def upload(
        self, stage: UploadStage, values: Stack, held: Stack, info: UploadInfo, cohort: Cohort
    ) -> Stack:
        """Return what the server receives from the members."""
        if trace_state() != self._trace:
            raise InputError(
                f"{self.name} sends within its own loop, where nothing can be kept between rounds: "
                "leave error_feedback and dp_adaptive_clip out, and take warmup=0 for mimic."
            )
        errors = None if self.errors is None else cohort.gather(self.errors)
        received, after = stage(values, held, info, StageMemory(errors, self.bound, self.attack))
        if errors is not None:
            self.errors = cohort.scatter(self.errors, after.errors)
        self.bound, self.attack = after.bound, after.attack
        return received

    def summed(self, updates: Stack, cohort: Cohort) -> Stack:
        """Add the members' updates to their history; return it, [M, ...].

        Raises:
          InputError: the algorithm aggregates more than once in a round.
        """
        self._once("foolsgold")
        new = jax.tree.map(jnp.add, cohort.gather(self.history), updates)
        self.history = cohort.scatter(self.history, new)
        return new

    def last_centre(self) -> Any:
        """Return the server's last update, before the only mean of a round.

        Raises:
          InputError: the algorithm aggregates more than once in a round.
        """
        self._once("keep_centre of cclip")
        return self.centre

    def _once(self, what: str) -> None:
        if self._aggregated or trace_state() != self._trace:
            raise InputError(f"{what} needs one mean a round, and {self.name} has several.")
        self._aggregated = True
