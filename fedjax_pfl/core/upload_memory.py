"""What uploads and robust rules remember between rounds, while a round is traced."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.uploads.stage import StageMemory, UploadInfo, UploadStage
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import Stack, Tree


class UploadMemory:
    """Provides the upload "model" with its memory while a round is traced.

    Args:
      name: name of the algorithm, for error messages.
      state: the `ExtendedState` before the round.
      plan: the federation's leaf plan, for whose shared leaves the memory was made.

    Attributes:
      errors, bound, history, centre, attack: as in `ExtendedState`, after the calls so far.
    """

    def __init__(self, name: str, state: Any, plan: LeafPlan):
        self.name, self.errors, self.bound = name, state.errors, state.bound
        self._shared = sum(plan.shared)
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
        if self.errors is not None:
            self._check_whole("error_feedback", values)
        elif self.attack is not None:
            self._check_whole("mimic", values, "take warmup=0")
        errors = None if self.errors is None else cohort.gather(self.errors)
        received, after = stage(values, held, info, StageMemory(errors, self.bound, self.attack))
        if errors is not None:
            self.errors = cohort.scatter(self.errors, after.errors)
        self.bound, self.attack = after.bound, after.attack
        return received

    def summed(self, updates: Stack, cohort: Cohort) -> Stack:
        """Add the members' updates to their history; return it, [M, ...].

        Raises:
          InputError: the algorithm aggregates more than once in a round, or a part of the layers.
        """
        self._once("foolsgold", updates)
        new = jax.tree.map(jnp.add, cohort.gather(self.history), updates)
        self.history = cohort.scatter(self.history, new)
        return new

    def last_centre(self, onto: Tree) -> Any:
        """Return the server's last update, before the only mean of a round.

        Args:
          onto: the server's model.

        Raises:
          InputError: the algorithm aggregates more than once in a round, or a part of the layers.
        """
        self._once("keep_centre of cclip", onto)
        return self.centre

    def _once(self, what: str, tree: Tree) -> None:
        self._check_whole(what, tree)
        if self._aggregated or trace_state() != self._trace:
            raise InputError(f"{what} needs one mean a round, and {self.name} has several.")
        self._aggregated = True

    def _check_whole(self, what: str, tree: Tree, advice: str = "leave it out") -> None:
        """Raise `InputError` unless a tree has all shared leaves, as what is remembered has."""
        if len(jax.tree.leaves(tree)) != self._shared:
            raise InputError(
                f"{what} remembers all shared layers, and {self.name} sends or averages only a "
                f"part of them together: {advice}."
            )
